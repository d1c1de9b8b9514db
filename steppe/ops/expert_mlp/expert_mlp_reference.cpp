#include "steppe/ops/expert_mlp/expert_mlp_reference.h"

#include <ATen/ATen.h>

#include <vector>

namespace steppe::ops {
namespace {

// Undefined stays undefined.
at::Tensor leaf(const at::Tensor& values) {
  if (!values.defined()) return {};
  return values.detach().to(at::kDouble).clone(at::MemoryFormat::Contiguous).requires_grad_();
}

at::Tensor gradient_of(const at::Tensor& leaf) {
  if (!leaf.defined() || leaf.grad().defined()) return leaf.defined() ? leaf.grad() : leaf;
  return at::zeros_like(leaf).detach();
}

at::Tensor activation(const at::Tensor& gate, const at::Tensor& up, bool clamped) {
  if (!clamped) return gate / (1 + (-gate).exp()) * up;
  const auto g = gate.clamp_max(7);
  return g / (1 + (-1.702 * g).exp()) * (up.clamp(-7, 7) + 1);
}

}  // namespace

ExpertMlpReference expert_mlp_reference(const ExpertMlpReferenceInputs& in) {
  const auto x = leaf(in.x_RH), w = leaf(in.weight_R), gate_up = leaf(in.gate_up_E2IH),
             down = leaf(in.down_EHI), gate_up_bias = leaf(in.gate_up_bias_E2I),
             down_bias = leaf(in.down_bias_EH);
  const int64_t intermediate = down.size(2);
  std::vector<at::Tensor> rows;
  for (size_t e = 0; e < in.rows_of_expert.size(); ++e) {
    for (int64_t i = 0; i < in.rows_of_expert[e]; ++i) {
      const auto r = static_cast<int64_t>(rows.size());
      const auto expert = static_cast<int64_t>(e);
      auto both = gate_up[expert].mv(x[r]);
      if (gate_up_bias.defined()) both = both + gate_up_bias[expert];
      auto y = down[expert].mv(activation(both.narrow(0, 0, intermediate),
                                          both.narrow(0, intermediate, intermediate), in.clamped));
      if (down_bias.defined()) y = y + down_bias[expert];
      rows.push_back(y * w[r]);
    }
  }
  const auto y = rows.empty() ? at::zeros_like(x).detach() : at::stack(rows);
  if (!rows.empty()) y.backward(in.dy_RH.detach().to(at::kDouble));
  return {y.detach(),
          gradient_of(x),
          gradient_of(w),
          gradient_of(gate_up),
          gradient_of(down),
          gradient_of(gate_up_bias),
          gradient_of(down_bias)};
}

}  // namespace steppe::ops
