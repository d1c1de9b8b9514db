// What a run can be made of: the longest context or largest batch that fits, and the layout and placements
// that fit a model and a length in the least time. Everything that comes back has been run dry and fits.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "steppe/plan/plan.h"

namespace steppe::plan {

// A recipe's values, as changed, and the plan of it.
struct Found {
  recipe::RunConfig run;
  Plan plan;
  std::vector<std::string> changes;  // "training.seq_length = 1048576", as for --set
  std::vector<std::string> reasons;  // why, a line each
};

// training.seq_length, in steps of `granule` tokens (0: 1024, or fewer where that is too long; multiples of
// the Ulysses degree), everything else as it is; the global batch is one micro-batch of every group. Throws
// DoesNotFit when not even the shortest fits.
Found longest_context(const recipe::RunConfig& run, const PlanOptions& options, int64_t granule = 0);

// Tokens of one forward and backward: training.micro_batch_size, with one micro-batch a step.
Found largest_batch(const recipe::RunConfig& run, const PlanOptions& options);

// parallelism.*, dispatch, loss, activation_checkpoint, offload and optimizer placements for the recipe's
// model, length and hardware. Operators that cost time stay off while there is room. Throws ValueError naming
// the term that breaks, and what would have to change, when nothing fits.
Found tune(const recipe::RunConfig& run, const PlanOptions& options);

}  // namespace steppe::plan
