#include "steppe/ops/moe_dispatch/moe_dispatch_reference.h"

#include <ATen/ATen.h>

namespace steppe::ops {
namespace {

// Its gradient is zero where nothing depends on it. Undefined stays undefined.
at::Tensor leaf(const at::Tensor& values) {
  if (!values.defined()) return {};
  auto copy = values.detach().to(at::kDouble).clone(at::MemoryFormat::Contiguous);
  copy.mutable_grad() = at::zeros_like(copy);
  return copy.requires_grad_();
}

at::Tensor gradient_of(const at::Tensor& leaf) {
  return leaf.defined() ? leaf.grad() : leaf;
}

at::Tensor activation(const at::Tensor& gate, const at::Tensor& up, bool clamped) {
  if (!clamped) return gate / (1 + (-gate).exp()) * up;
  const auto g = gate.clamp_max(7);
  return g / (1 + (-1.702 * g).exp()) * (up.clamp(-7, 7) + 1);
}

}  // namespace

MoeReference moe_dispatch_reference(const MoeReferenceInputs& in) {
  const auto x = leaf(in.x_NH), weights = leaf(in.weights_Nk);
  const auto gate_up = leaf(in.gate_up_E2IH), down = leaf(in.down_EHI),
             gate_up_bias = leaf(in.gate_up_bias_E2I), down_bias = leaf(in.down_bias_EH);
  const int64_t intermediate = down.size(2);
  const auto y = at::zeros(x.sizes(), at::kDouble);
  for (int64_t t = 0; t < x.size(0); ++t) {
    at::Tensor total = at::zeros({x.size(1)}, at::kDouble);
    for (int64_t j = 0; j < weights.size(1); ++j) {
      const auto expert = in.ids_Nk[t][j].item<int64_t>();
      auto both = gate_up[expert].mv(x[t]);
      if (gate_up_bias.defined()) both = both + gate_up_bias[expert];
      auto out = down[expert].mv(activation(both.narrow(0, 0, intermediate),
                                            both.narrow(0, intermediate, intermediate), in.clamped));
      if (down_bias.defined()) out = out + down_bias[expert];
      total = total + out * weights[t][j];
    }
    total.backward(in.dy_NH[t].detach().to(at::kDouble));
    y[t].copy_(total.detach());
  }
  return {y,
          x.grad(),
          weights.grad(),
          gate_up.grad(),
          down.grad(),
          gradient_of(gate_up_bias),
          gradient_of(down_bias)};
}

}  // namespace steppe::ops
