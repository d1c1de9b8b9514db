// plan.routing_profile, as what decides where tokens go: a profile by name, or the expert loads of a run's
// metrics.jsonl (its last line with `moe/expert_load`).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "steppe/layout/layout.h"
#include "steppe/model/config.h"
#include "steppe/ops/moe_dispatch/route_counts.h"
#include "steppe/ops/router/router.h"
#include "steppe/recipe/run_config.h"

namespace steppe::plan {

// [layer][expert] of a run of `model`; empty for dense layers. Throws ValueError when the file holds none, or
// another model's, RuntimeFailure when it cannot be read.
std::vector<std::vector<int64_t>> recorded_load(const std::string& metrics_path,
                                                const model::ModelConfig& model);

// Null where the recipe's own routing needs no values (router.force_load_balancing). `rank` seeds `random`.
std::unique_ptr<ops::RoutingSource> supposed_routing(const recipe::RunConfig& run,
                                                     const model::ModelConfig& model, int rank);

// A layer's routes where each of `num_sources` ranks routes `num_tokens` like this one. On `meta`.
ops::RouteCounts routed_alike(ops::RoutingSource& routing, const model::ModelConfig& model, int64_t layer,
                              const ops::ChunkSplit& split, int64_t num_tokens, int64_t num_sources);

}  // namespace steppe::plan
