// Matrix products that count themselves. Shapes and aliasing as in kernels/matmul.h.
#pragma once

#include "steppe/ops/context.h"

namespace steppe::ops {

void product(const OpContext& context, FlopKind kind, const at::Tensor& out, const at::Tensor& a,
             const at::Tensor& b);  // out = a·b

void product_add(const OpContext& context, FlopKind kind, const at::Tensor& out, const at::Tensor& a,
                 const at::Tensor& b);  // out += a·b

// A weight gradient: accumulator (fp32) += a·b. With bf16 operands allocates the product once, in category
// `grads`.
void product_accumulate(const OpContext& context, FlopKind kind, const at::Tensor& accumulator,
                        const at::Tensor& a, const at::Tensor& b);

}  // namespace steppe::ops
