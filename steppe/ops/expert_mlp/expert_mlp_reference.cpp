#include "steppe/ops/expert_mlp/expert_mlp_reference.h"

#include <ATen/ATen.h>

#include <vector>

namespace steppe::ops {
namespace {

at::Tensor leaf(const at::Tensor& values) {
  return values.detach().to(at::kDouble).clone(at::MemoryFormat::Contiguous).requires_grad_();
}

at::Tensor gradient_of(const at::Tensor& leaf) {
  return leaf.grad().defined() ? leaf.grad() : at::zeros_like(leaf).detach();
}

}  // namespace

ExpertMlpReference expert_mlp_reference(const at::Tensor& x_RH, const at::Tensor& weight_R,
                                        std::span<const int64_t> rows_of_expert,
                                        const at::Tensor& gate_up_E2IH, const at::Tensor& down_EHI,
                                        const at::Tensor& dy_RH) {
  const auto x = leaf(x_RH), w = leaf(weight_R), gate_up = leaf(gate_up_E2IH), down = leaf(down_EHI);
  const int64_t intermediate = down_EHI.size(2);
  std::vector<at::Tensor> rows;
  for (size_t e = 0; e < rows_of_expert.size(); ++e) {
    for (int64_t i = 0; i < rows_of_expert[e]; ++i) {
      const auto r = static_cast<int64_t>(rows.size());
      const auto expert = static_cast<int64_t>(e);
      const auto gate = gate_up[expert].narrow(0, 0, intermediate).mv(x[r]);
      const auto up = gate_up[expert].narrow(0, intermediate, intermediate).mv(x[r]);
      rows.push_back(down[expert].mv(gate / (1 + (-gate).exp()) * up * w[r]));
    }
  }
  if (rows.empty())
    return {at::zeros_like(x).detach(), gradient_of(x), gradient_of(w), gradient_of(gate_up),
            gradient_of(down)};
  const auto y = at::stack(rows);
  y.backward(dy_RH.detach().to(at::kDouble));
  return {y.detach(), gradient_of(x), gradient_of(w), gradient_of(gate_up), gradient_of(down)};
}

}  // namespace steppe::ops
