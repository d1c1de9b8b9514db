#include "steppe/ops/feed_forward/feed_forward.h"

#include "steppe/kernels/swiglu.h"
#include "steppe/memory/scope.h"
#include "steppe/ops/product.h"

namespace steppe::ops {
void feed_forward_forward(const OpContext& context, const at::Tensor& y_NH, const at::Tensor& x_NH,
                          const FeedForwardWeights& weights, at::Tensor* keep_gate_up_N2I) {
  const memory::Scope scope(memory::Category::kFfn);
  const int64_t n = x_NH.size(0), two_i = weights.gate_up_2IH.size(0);
  const auto gate_up = context.empty({n, two_i}), act = context.empty({n, two_i / 2});
  product(context, FlopKind::kDense, gate_up, x_NH, weights.gate_up_2IH.t());
  kernels::swiglu_forward(act, gate_up, {});
  product_add(context, FlopKind::kDense, y_NH, act, weights.down_HI.t());
  if (keep_gate_up_N2I != nullptr) *keep_gate_up_N2I = gate_up;
}

void feed_forward_backward(const OpContext& context, const FeedForwardBackward& args) {
  const memory::Scope scope(memory::Category::kFfn);
  const int64_t n = args.x_NH.size(0), two_i = args.weights.gate_up_2IH.size(0);
  const bool kept = args.kept_gate_up_N2I.defined();
  const auto gate_up = kept ? args.kept_gate_up_N2I : context.empty({n, two_i});
  if (!kept) product(context, FlopKind::kDense, gate_up, args.x_NH, args.weights.gate_up_2IH.t());
  const auto act = context.empty({n, two_i / 2});
  product(context, FlopKind::kDense, act, args.dy_NH, args.weights.down_HI);
  kernels::swiglu_backward_inplace(gate_up, act, {}, {});
  product_accumulate(context, FlopKind::kDense, args.grads.down_HI, args.dy_NH.t(), act);
  product_accumulate(context, FlopKind::kDense, args.grads.gate_up_2IH, gate_up.t(), args.x_NH);
  product_add(context, FlopKind::kDense, args.dx_NH, gate_up, args.weights.gate_up_2IH);
}

}  // namespace steppe::ops
