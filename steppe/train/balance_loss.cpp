#include "steppe/train/balance_loss.h"

#include <numeric>

#include "steppe/memory/scope.h"
#include "steppe/ops/host_copy.h"

namespace steppe::train {

at::Tensor balance_score_gradient(const ops::OpContext& context, comm::Groups& groups,
                                  std::span<const model::LayerState> layers, int64_t num_experts,
                                  double coeff, int64_t num_tokens) {
  const auto num_layers = static_cast<int64_t>(layers.size());
  // The expert group's counts are known to all of it.
  std::vector<int64_t> of_group(num_layers * num_experts, 0);
  for (int64_t layer = 0; layer < num_layers; ++layer) {
    if (!layers[layer].routing) continue;
    const auto& counts = layers[layer].routing->counts;
    for (int64_t source = 0; source < counts.num_sources(); ++source)
      for (int64_t e = 0; e < num_experts; ++e)
        of_group[layer * num_experts + e] += counts.from_to(source, e);
  }
  const auto of_groups = groups.expert_replicas->all_gather_host(of_group);

  std::vector<float> gradient(of_group.size(), 0);
  for (int64_t layer = 0; layer < num_layers; ++layer) {
    std::vector<int64_t> load(num_experts, 0);
    for (size_t group = 0; group < of_groups.size(); group += of_group.size())
      for (int64_t e = 0; e < num_experts; ++e) load[e] += of_groups[group + layer * num_experts + e];
    const int64_t routes = std::accumulate(load.begin(), load.end(), int64_t{0});
    if (routes == 0) continue;
    const double scale = coeff * static_cast<double>(num_experts) /
                         (static_cast<double>(routes) * static_cast<double>(num_tokens));
    for (int64_t e = 0; e < num_experts; ++e)
      gradient[layer * num_experts + e] = static_cast<float>(scale * static_cast<double>(load[e]));
  }
  const memory::Scope scope(memory::Category::kRouting);
  return ops::upload(context, gradient).view({num_layers, num_experts});
}

}  // namespace steppe::train
