// A bias vector added to rows, and its gradients. Rows [R, C] fp32 or bf16 with a stride, the last dim
// contiguous; biases of the same dtype, gradients and row weights fp32, all contiguous; computed in fp32.
// row_weight may be undefined (1). Fill given tensors, return at once on `meta` (after the checks), allocate
// nothing. The same bits for any number of threads. ValueError: shapes, dtypes, devices or layouts that do
// not fit.
#pragma once

#include <ATen/core/Tensor.h>

namespace steppe::kernels {

// rows[r] += row_weight[r]·bias
void add_row_bias(const at::Tensor& rows_RC, const at::Tensor& bias_C, const at::Tensor& row_weight_R);

// grad_bias += Σ_r row_weight[r]·rows[r], r ascending on the CPU, by a fixed tree on CUDA.
void add_column_sums(const at::Tensor& grad_bias_C, const at::Tensor& rows_RC,
                     const at::Tensor& row_weight_R);

// out[r] += ⟨rows[r], bias⟩: the gradient of add_row_bias's row_weight.
void add_row_dots(const at::Tensor& out_R, const at::Tensor& rows_RC, const at::Tensor& bias_C);

}  // namespace steppe::kernels
