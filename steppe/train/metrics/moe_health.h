// Router health in a few scalars.
//
// With c_e the assignments of expert e in one layer of E experts, and c̄ their mean:
//   load_max_over_mean  max c_e / c̄, of the worst layer: 1 is even, E is one expert taking all
//   load_cv             standard deviation of c_e over c̄, mean over layers
//   dead_expert_frac    experts with c_e = 0, over all layers' experts
//   router_entropy      entropy of c_e / Σc over ln E, mean over layers: 1 is even, 0 is one expert
// Layers to which nothing was routed say nothing and are left out; all figures are 0 if every layer is such.
// Host only, O(layers × experts).
#pragma once

#include <vector>

#include "steppe/train/metrics/step_metrics.h"

namespace steppe::metrics {

// Throws ValueError for a layer without experts or a negative count.
MoeHealth moe_health(const ExpertLoad& load);

// Largest magnitude among the expert biases, [layer][expert]; 0 if there are none. NaN if any is NaN, so that
// a broken bias is seen.
double bias_max_abs(const std::vector<std::vector<float>>& bias);

}  // namespace steppe::metrics
