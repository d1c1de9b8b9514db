// Small runs from recipes, for tests of the plan: dry, and for real on a CPU with ranks as threads.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "steppe/plan/dry_run.h"
#include "steppe/recipe/run_config.h"

namespace steppe::testing {

struct PlannedRun {
  std::string name;
  int world_size = 1;
  std::vector<std::string> overrides;  // of the small recipe
  int num_threads = 1;
  std::optional<offload::OutputBudgets> attention_output_bytes = {};

  plan::DryRunOptions options() const {
    return {.world_size = world_size,
            .num_threads = num_threads,
            .attention_output_bytes = attention_output_bytes};
  }
};

recipe::RunConfig small_recipe(const PlannedRun& run);

// Over fifty: layouts, operators, precisions, profiles, micro-batches, lengths that nothing divides.
std::vector<PlannedRun> planned_runs();

// Each rank's first step for real, in the terms of its dry run.
std::vector<plan::DryRun> real_run(const recipe::RunConfig& run, const PlannedRun& planned);

}  // namespace steppe::testing
