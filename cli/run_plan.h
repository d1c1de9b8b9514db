// The plan that stands before a run.
#pragma once

#include <cstdint>
#include <optional>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "cli/launch/environment.h"
#include "steppe/base/log.h"
#include "steppe/offload/attention_outputs.h"
#include "steppe/recipe/run_config.h"
#include "steppe/train/metrics/planned_memory.h"

namespace steppe::cli {

struct RunPlan {
  std::optional<metrics::PlannedMemory> memory;                  // on rank 0
  std::optional<offload::OutputBudgets> attention_output_bytes;  // their room, the same on every rank
};

// Rank 0 makes the plan, keeps it as RUN/plan.json, logs the verdict and tells the others what they share.
// Throws ValueError when the run cannot fit the machine at hand (or the recipe's hardware), unless
// plan.allow_unfit. Collective.
RunPlan plan_run(const recipe::RunConfig& run, const launch::LaunchEnvironment& environment,
                 c10d::Store& store, int num_threads, const Log& log);

// Ranks of the fullest node, by what the launcher says; the recipe's hardware.ranks_per_node may say more
// (containers of one rank each). They share the node's offload.host_budget. Collective.
int64_t agree_on_ranks_per_node(const recipe::RunConfig& run, const launch::LaunchEnvironment& environment,
                                c10d::Store& store, const Log& log);

}  // namespace steppe::cli
