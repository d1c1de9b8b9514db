// Routings by a token's position in its rank's shard, where no router value decides: a profile for planning
// and measurements, or the expert loads that a run recorded. The same on a CPU, a GPU and `meta`, so that a
// real run can follow what a dry run supposed.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "steppe/ops/moe_dispatch/routing_profile.h"
#include "steppe/ops/router/router.h"

namespace steppe::ops {

// Every layer, micro-batch and rank routes its own tokens by the profile. `experts_per_rank` matters to
// `stride` alone, `seed` to `random`.
std::unique_ptr<RoutingSource> profile_routing(const RoutingProfile& profile, const RouterConfig& config,
                                               int64_t experts_per_rank, uint64_t seed);

// Routes in the proportions of load[layer][expert] (any scale; an empty layer is routed evenly), spread over
// positions by the golden ratio's sequence: every run of n routes is within a few routes of its share. A
// token may list an expert twice where one has more than a k-th of the load.
std::unique_ptr<RoutingSource> recorded_routing(std::vector<std::vector<int64_t>> load,
                                                const RouterConfig& config);

}  // namespace steppe::ops
