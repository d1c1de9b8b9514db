// Table lookup and its gradient. Fill given tensors, return at once on `meta`, allocate nothing.
// The table and its gradient are contiguous; rows of activations may have a stride.
#pragma once

#include <ATen/core/Tensor.h>

namespace steppe::kernels {

// out [R, H] row i = table [V, H] row ids[i] - first_row; ids int32, all within the table (checked by the
// caller).
void embedding_forward(const at::Tensor& out_RH, const at::Tensor& table_VH, const at::Tensor& ids_R,
                       int64_t first_row);

// grad_table [V, H] fp32 row ids[i] - first_row += dy [R, H] row i (fp32 or bf16), in the order of i for each
// row.
void embedding_backward(const at::Tensor& grad_table_VH, const at::Tensor& dy_RH, const at::Tensor& ids_R,
                        int64_t first_row);

}  // namespace steppe::kernels
