#include "steppe/ops/product.h"

#include "steppe/kernels/matmul.h"
#include "steppe/memory/scope.h"

namespace steppe::ops {
namespace {

void count(const OpContext& context, FlopKind kind, const at::Tensor& a, const at::Tensor& b) {
  context.counters->flops.add(kind, 2 * a.size(0) * a.size(1) * b.size(1));
}

}  // namespace

void product(const OpContext& context, FlopKind kind, const at::Tensor& out, const at::Tensor& a,
             const at::Tensor& b) {
  count(context, kind, a, b);
  kernels::matmul(out, a, b);
}

void product_add(const OpContext& context, FlopKind kind, const at::Tensor& out, const at::Tensor& a,
                 const at::Tensor& b) {
  count(context, kind, a, b);
  kernels::matmul_add(out, a, b);
}

void product_accumulate(const OpContext& context, FlopKind kind, const at::Tensor& accumulator,
                        const at::Tensor& a, const at::Tensor& b) {
  count(context, kind, a, b);
  at::Tensor scratch;
  if (a.scalar_type() != at::kFloat) {
    const memory::Scope scope(memory::Category::kGrads);
    scratch = context.empty(accumulator.sizes(), a.scalar_type());
  }
  kernels::matmul_accumulate(accumulator, a, b, scratch);
}

}  // namespace steppe::ops
