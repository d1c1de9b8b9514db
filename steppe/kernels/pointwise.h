// Element-wise passes over contiguous tensors. Functions fill given tensors, return at once on `meta`, allocate
// nothing. Sums are in a fixed order that does not depend on the number of threads.
#pragma once

#include <cstdint>
#include <span>

#include <ATen/core/Tensor.h>

namespace steppe::kernels {

void fill_zero(const at::Tensor& x);
void add(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b);  // out = a + b, one dtype
void add_to(const at::Tensor& accumulator, const at::Tensor& x);  // fp32 or x's dtype; x may be bf16, any layout of
                                                                  // rows (last dim contiguous)
void copy_cast(const at::Tensor& out, const at::Tensor& in);      // any float dtypes; last dim contiguous
void scale(const at::Tensor& x, double factor);                   // in place

// accumulator [n] fp32 += Σ_p parts[p*n : (p+1)*n] in the order of p. Source of every fp32 reduction over ranks.
void add_parts_in_order(const at::Tensor& accumulator, std::span<const at::Tensor> parts);

// out[0] (fp64 [1]) += Σ x². Blocked pairwise in fp64; fixed order.
void add_sum_of_squares(const at::Tensor& out, const at::Tensor& x);

// out[0] (int64 [1]) += number of non-finite values in x.
void add_nonfinite_count(const at::Tensor& out, const at::Tensor& x);

}  // namespace steppe::kernels
