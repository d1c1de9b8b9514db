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
};

// Arguments of any floating dtype, results fp64. Rows are ordered by expert, as rows_of_expert says.
ExpertMlpReference expert_mlp_reference(const at::Tensor& x_RH, const at::Tensor& weight_R,
                                        std::span<const int64_t> rows_of_expert,
                                        const at::Tensor& gate_up_E2IH, const at::Tensor& down_EHI,
                                        const at::Tensor& dy_RH);

}  // namespace steppe::ops
