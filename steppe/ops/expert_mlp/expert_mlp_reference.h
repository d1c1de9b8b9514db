// The oracle of expert_mlp: one row at a time, in fp64, differentiated by autograd. Slow, and obviously
// right.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

namespace steppe::ops {

struct ExpertMlpReference {
  at::Tensor y_RH;
  at::Tensor dx_RH, dweight_R, dgate_up_E2IH, ddown_EHI;  // of ⟨y, dy⟩
  at::Tensor dgate_up_bias_E2I, ddown_bias_EH;            // undefined without biases
};

struct ExpertMlpReferenceInputs {
  at::Tensor x_RH, weight_R;
  std::span<const int64_t> rows_of_expert;
  at::Tensor gate_up_E2IH, down_EHI, dy_RH;
  at::Tensor gate_up_bias_E2I{}, down_bias_EH{};  // undefined: none
  bool clamped = false;                           // gpt-oss: 1.702, 7, up + 1
};

// Arguments of any floating dtype, results fp64. Rows are ordered by expert, as rows_of_expert says.
ExpertMlpReference expert_mlp_reference(const ExpertMlpReferenceInputs& in);

}  // namespace steppe::ops
