// The oracle of every kind of expert dispatch: all tokens and all experts in one place, one route at a time,
// in fp64, differentiated by autograd. Knows no ranks.
#pragma once

#include <ATen/core/Tensor.h>

namespace steppe::ops {

// Arguments of any floating dtype.
struct MoeReferenceInputs {
  at::Tensor x_NH, ids_Nk, weights_Nk, gate_up_E2IH, down_EHI;
  at::Tensor dy_NH;
  at::Tensor gate_up_bias_E2I{}, down_bias_EH{};  // undefined: none
  bool clamped = false;                           // gpt-oss's form
};

struct MoeReference {                                       // fp64
  at::Tensor y_NH;                                          // without what y held before
  at::Tensor dx_NH, dweights_Nk, dgate_up_E2IH, ddown_EHI;  // of ⟨y, dy⟩
  at::Tensor dgate_up_bias_E2I, ddown_bias_EH;              // undefined without biases
};

MoeReference moe_dispatch_reference(const MoeReferenceInputs& in);

}  // namespace steppe::ops
