// The arithmetic of reduce_scatter_add. It lives here, below the kernels, so that comm depends on nothing
// above it.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>
#include <string>

namespace steppe::comm {

// Throws ValueError unless `accumulator` is fp32 and `full` fp32, bf16 or fp16, or both are fp64.
void check_summable(const std::string& group_name, const at::Tensor& accumulator, const at::Tensor& full);

// accumulator += parts[0], then += parts[1], …: in the accumulator's dtype, element by element, in this
// order. All contiguous with the accumulator's number of elements. Allocates nothing; on meta it does
// nothing.
void add_in_order(const at::Tensor& accumulator, std::span<const at::Tensor> parts);

}  // namespace steppe::comm
