// What attention.cpp hands to a backend, its arguments checked. The CPU's serves `meta` too.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

#include "steppe/kernels/attention.h"

namespace steppe::kernels {

struct AttentionInput {
  at::Tensor q_Shd, k_Shd, v_Shd;
  std::span<const int64_t> document_bounds;
  double scale = 1;
  bool deterministic = true;  // of the backward
};

AttentionOutput attention_forward_cpu(const AttentionInput& input);
AttentionGradients attention_backward_cpu(const at::Tensor& dout_Shd, const AttentionInput& input,
                                          const AttentionOutput& output);

// On `meta`, standing for a CUDA device.
AttentionOutput attention_forward_as_cuda(const AttentionInput& input);
AttentionGradients attention_backward_as_cuda(const AttentionInput& input);

AttentionOutput attention_forward_cuda(const AttentionInput& input);
AttentionGradients attention_backward_cuda(const at::Tensor& dout_Shd, const AttentionInput& input,
                                           const AttentionOutput& output);

}  // namespace steppe::kernels
