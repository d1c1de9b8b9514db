#include "steppe/ops/feed_forward/feed_forward_reference.h"

#include <ATen/ATen.h>

namespace steppe::ops {
namespace {

at::Tensor leaf(const at::Tensor& values) {
  return values.detach().to(at::kDouble).clone(at::MemoryFormat::Contiguous).requires_grad_();
}

}  // namespace

FeedForwardReference feed_forward_reference(const at::Tensor& x_NH, const at::Tensor& gate_up_2IH,
                                            const at::Tensor& down_HI, const at::Tensor& dy_NH) {
  const auto x = leaf(x_NH), gate_up = leaf(gate_up_2IH), down = leaf(down_HI);
  for (const auto& each : {x, gate_up, down}) each.mutable_grad() = at::zeros(each.sizes(), each.options());
  const int64_t intermediate = down_HI.size(1);
  const auto y = at::zeros(x.sizes(), at::kDouble);
  for (int64_t t = 0; t < x.size(0); ++t) {
    const auto gate = gate_up.narrow(0, 0, intermediate).mv(x[t]);
    const auto up = gate_up.narrow(0, intermediate, intermediate).mv(x[t]);
    const auto row = down.mv(gate / (1 + (-gate).exp()) * up);
    row.backward(dy_NH[t].detach().to(at::kDouble));
    y[t].copy_(row.detach());
  }
  return {y, x.grad(), gate_up.grad(), down.grad()};
}

}  // namespace steppe::ops
