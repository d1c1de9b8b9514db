#include "steppe/ops/moe_dispatch/moe_dispatch_reference.h"

#include <ATen/ATen.h>

namespace steppe::ops {
namespace {

// Its gradient is zero where nothing depends on it.
at::Tensor leaf(const at::Tensor& values) {
  auto copy = values.detach().to(at::kDouble).clone(at::MemoryFormat::Contiguous);
  copy.mutable_grad() = at::zeros_like(copy);
  return copy.requires_grad_();
}

}  // namespace

MoeReference moe_dispatch_reference(const MoeReferenceInputs& in) {
  const auto x = leaf(in.x_NH), weights = leaf(in.weights_Nk);
  const auto gate_up = leaf(in.gate_up_E2IH), down = leaf(in.down_EHI);
  const int64_t intermediate = down.size(2);
  const auto y = at::zeros(x.sizes(), at::kDouble);
  for (int64_t t = 0; t < x.size(0); ++t) {
    at::Tensor total = at::zeros({x.size(1)}, at::kDouble);
    for (int64_t j = 0; j < weights.size(1); ++j) {
      const auto expert = in.ids_Nk[t][j].item<int64_t>();
      const auto gate = gate_up[expert].narrow(0, 0, intermediate).mv(x[t]);
      const auto up = gate_up[expert].narrow(0, intermediate, intermediate).mv(x[t]);
      total = total + down[expert].mv(gate / (1 + (-gate).exp()) * up) * weights[t][j];
    }
    total.backward(in.dy_NH[t].detach().to(at::kDouble));
    y[t].copy_(total.detach());
  }
  return {y, x.grad(), weights.grad(), gate_up.grad(), down.grad()};
}

}  // namespace steppe::ops
