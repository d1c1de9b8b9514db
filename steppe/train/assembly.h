// What a step runs on: one construction for the rank that trains and for the rank that is only planned, so
// that the plan cannot describe another program than the one that runs.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "steppe/base/counters.h"
#include "steppe/comm/groups.h"
#include "steppe/layout/layout.h"
#include "steppe/model/config.h"
#include "steppe/model/weights.h"
#include "steppe/ops/context.h"
#include "steppe/ops/router/router.h"
#include "steppe/recipe/run_config.h"
#include "steppe/train/step.h"

namespace steppe::train {

// The model and this rank's place in the layout. Throws ValueError for what does not fit together; allocates
// nothing, talks to nobody.
struct RankShape {
  RankShape(const recipe::RunConfig& run, int rank, int world_size);

  model::ModelConfig model;
  layout::LayoutConfig layout_config;
  layout::RankLayout layout;
};

// Weights and step of one rank, in the order they must live. `shape` must outlive it. On `meta`, over
// shape-only groups, nothing is computed and everything is booked. `routing`: null for the recipe's own;
// `attention_output_bytes`: offload_config()'s.
struct Assembly {
  Assembly(const recipe::RunConfig& run, const RankShape& shape, at::Device device, comm::Groups groups,
           std::unique_ptr<ops::RoutingSource> routing = nullptr,
           std::optional<offload::OutputBudgets> attention_output_bytes = {});
  Assembly(const Assembly&) = delete;

  Counters counters;
  ops::OpContext context;
  comm::Groups groups;
  model::ModelWeights weights;
  std::unique_ptr<ops::RoutingSource> routing;
  Step step;
};

}  // namespace steppe::train
