// Matrix products. All operands are 2-D views (either stride may be 1: transposes are views) of one dtype,
// except that an fp32 accumulator may take a bf16 product. Products go to the vendor's library through ATen.
// Functions fill given tensors, return at once on `meta` (after the checks), and allocate nothing. Empty
// rows, columns and inner dimensions are ordinary. ValueError: shapes, dtypes or devices that do not fit; a
// view with neither stride 1 (the library would copy it).
#pragma once

#include <ATen/core/Tensor.h>

namespace steppe::kernels {

// out [m, n] = a [m, k] · b [k, n]; zero when k is 0.
void matmul(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b);

// out += a·b, out of a's dtype. An inner dimension of 0 leaves out as it is.
void matmul_add(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b);

// accumulator (fp32) += a·b. For fp32 operands `scratch` may be undefined; for bf16 it must be a contiguous
// bf16 tensor of accumulator's shape (the product is rounded to bf16 once, then added in fp32).
void matmul_accumulate(const at::Tensor& accumulator, const at::Tensor& a, const at::Tensor& b,
                       const at::Tensor& scratch);

}  // namespace steppe::kernels
