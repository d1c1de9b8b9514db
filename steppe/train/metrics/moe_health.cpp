#include "steppe/train/metrics/moe_health.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "steppe/base/error.h"

namespace steppe::metrics {
namespace {

int64_t checked_total(const std::vector<int64_t>& counts, size_t layer) {
  STEPPE_CHECK_VALUE(!counts.empty(), "[moe_health] load[{}] must have at least one expert, got none", layer);
  int64_t total = 0;
  for (size_t expert = 0; expert < counts.size(); ++expert) {
    STEPPE_CHECK_VALUE(counts[expert] >= 0, "[moe_health] load[{}][{}] must be a count, got {}", layer,
                       expert, counts[expert]);
    total += counts[expert];
  }
  return total;
}

// The figures of one layer; dead_expert_frac is still a number of experts.
MoeHealth layer_health(const std::vector<int64_t>& counts, int64_t total) {
  const double num_experts = static_cast<double>(counts.size());
  const double mean = static_cast<double>(total) / num_experts;
  double square_sum = 0;
  double entropy = 0;
  MoeHealth health;
  for (const int64_t count : counts) {
    const double delta = static_cast<double>(count) - mean;
    square_sum += delta * delta;
    if (count == 0) {
      health.dead_expert_frac += 1;
      continue;
    }
    const double share = static_cast<double>(count) / static_cast<double>(total);
    entropy -= share * std::log(share);
  }
  health.load_max_over_mean = static_cast<double>(*std::max_element(counts.begin(), counts.end())) / mean;
  health.load_cv = std::sqrt(square_sum / num_experts) / mean;
  // A single expert is as even as can be.
  health.router_entropy = counts.size() == 1 ? 1.0 : entropy / std::log(num_experts);
  return health;
}

}  // namespace

MoeHealth moe_health(const ExpertLoad& load) {
  MoeHealth health;
  double num_layers = 0;
  double num_experts = 0;
  for (size_t layer = 0; layer < load.size(); ++layer) {
    const int64_t total = checked_total(load[layer], layer);
    if (total == 0) continue;
    const MoeHealth one = layer_health(load[layer], total);
    health.load_max_over_mean = std::max(health.load_max_over_mean, one.load_max_over_mean);
    health.load_cv += one.load_cv;
    health.dead_expert_frac += one.dead_expert_frac;
    health.router_entropy += one.router_entropy;
    num_layers += 1;
    num_experts += static_cast<double>(load[layer].size());
  }
  if (num_layers == 0) return {};
  health.load_cv /= num_layers;
  health.router_entropy /= num_layers;
  health.dead_expert_frac /= num_experts;
  return health;
}

double bias_max_abs(const std::vector<std::vector<float>>& bias) {
  double largest = 0;
  for (const auto& layer : bias) {
    for (const float value : layer) {
      if (std::isnan(value)) return std::numeric_limits<double>::quiet_NaN();
      largest = std::max(largest, static_cast<double>(std::fabs(value)));
    }
  }
  return largest;
}

}  // namespace steppe::metrics
