// Embedding lookup and its gradient over a whole table, by loops in fp64.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

namespace steppe::ops {

at::Tensor embedding_reference(const at::Tensor& table_VH, std::span<const int32_t> tokens);

// grad [V, H] fp64 += the rows dy of each token, and `terms` [V, H] fp64 += their absolute values: what the
// rounding of any order of summation is bounded by.
void embedding_gradient_reference(const at::Tensor& grad_VH, const at::Tensor& terms_VH,
                                  const at::Tensor& dy_NH, std::span<const int32_t> tokens);

}  // namespace steppe::ops
