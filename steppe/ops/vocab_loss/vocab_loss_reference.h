// Output projection and cross entropy by loops in fp64 over the whole vocabulary: no strips, no ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace steppe::ops {

struct VocabLossReference {
  at::Tensor row_loss_N, dx_NH, grad_weight_VH;  // fp64; the gradients of Σ row_weight · row_loss
  // Largest sums of absolute values that a logit, an entry of dx and one of the weight's gradient are made
  // of: what their rounding errors are relative to.
  double logit_size = 0, dx_size = 0, grad_size = 0;
};

VocabLossReference vocab_loss_reference(const at::Tensor& x_NH, const at::Tensor& targets_N,
                                        const at::Tensor& row_weight_N, const at::Tensor& weight_VH);

}  // namespace steppe::ops
