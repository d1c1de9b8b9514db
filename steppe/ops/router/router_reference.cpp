#include "steppe/ops/router/router_reference.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace steppe::ops {
namespace {

at::Tensor leaf(const at::Tensor& values) {
  auto copy = values.detach().to(at::kDouble).clone(at::MemoryFormat::Contiguous);
  copy.mutable_grad() = at::zeros_like(copy);
  return copy.requires_grad_();
}

}  // namespace

RouterReference router_reference(const RouterReferenceInput& in) {
  const auto x = leaf(in.x_NH), weight = leaf(in.weight_EH);
  const auto exponentials = x.mm(weight.t()).exp();
  const auto scores = exponentials / exponentials.sum(1, /*keepdim=*/true);
  auto weights = scores.gather(1, in.ids_Nk.to(at::kLong));
  if (in.normalize) weights = weights / weights.sum(1, /*keepdim=*/true);
  auto balance = at::zeros({}, at::kDouble);
  if (in.dscores_E.defined()) balance = (scores * in.dscores_E.to(at::kDouble)).sum();
  const auto z = in.z_coeff * exponentials.sum(1).log().square().sum();
  ((weights * in.dweights_Nk.detach().to(at::kDouble)).sum() + balance + z).backward();
  return {scores.detach(),  weights.detach(), balance.item<double>(),
          z.item<double>(), x.grad(),         weight.grad()};
}

std::vector<int32_t> top_k_reference(const at::Tensor& scores_NE, const at::Tensor& bias_E, int64_t top_k) {
  std::vector<int32_t> ids;
  const int64_t experts = scores_NE.size(1);
  for (int64_t t = 0; t < scores_NE.size(0); ++t) {
    std::vector<bool> taken(experts, false);
    for (int64_t j = 0; j < top_k; ++j) {
      int64_t best = -1;
      float best_value = 0;
      for (int64_t e = 0; e < experts; ++e) {
        const float value =
            scores_NE[t][e].item<float>() + (bias_E.defined() ? bias_E[e].item<float>() : 0.f);
        if (taken[e] || (best >= 0 && value <= best_value)) continue;
        best = e, best_value = value;
      }
      taken[best] = true;
      ids.push_back(static_cast<int32_t>(best));
    }
  }
  return ids;
}

}  // namespace steppe::ops
