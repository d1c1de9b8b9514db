// Element-wise passes. Functions fill given tensors, return at once on `meta` (after the checks), allocate
// nothing. Tensors are fp32 or bf16 and contiguous unless said otherwise; arithmetic is in fp32. Sums are in
// a fixed order that does not depend on the number of threads. ValueError: shapes, dtypes, devices or layouts
// that do not fit.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

namespace steppe::kernels {

void fill_zero(const at::Tensor& x);  // any dtype, any layout
void add(const at::Tensor& out, const at::Tensor& a,
         const at::Tensor& b);                   // out = a + b, one dtype; out may be a
void scale(const at::Tensor& x, double factor);  // in place; factor rounded to fp32

// accumulator += x, of one shape. accumulator is fp32 or of x's dtype. Last dimensions contiguous; the others
// may be strided as long as they fold into two.
void add_to(const at::Tensor& accumulator, const at::Tensor& x);

// out = in, of one shape, rounded to nearest even. Any floating dtypes; last dimensions contiguous.
void copy_cast(const at::Tensor& out, const at::Tensor& in);

// accumulator fp32 = ((accumulator + parts[0]) + parts[1]) + …, each of accumulator's number of elements, all
// of one dtype. Source of every fp32 reduction over ranks.
void add_parts_in_order(const at::Tensor& accumulator, std::span<const at::Tensor> parts);

// out[0] (fp64 [1]) += Σ x². In fp64, by blocks whose number and size depend on the number of elements only.
void add_sum_of_squares(const at::Tensor& out, const at::Tensor& x);

// out[0] (int64 [1]) += number of non-finite values in x.
void add_nonfinite_count(const at::Tensor& out, const at::Tensor& x);

}  // namespace steppe::kernels
