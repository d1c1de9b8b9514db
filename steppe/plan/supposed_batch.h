// The batch that a plan supposes: full sequences of one document each, tokens dealt evenly to the owners of
// embedding rows, and in every rank's shard one token without a target, as real ones mostly have.
#pragma once

#include <cstdint>
#include <vector>

#include "steppe/data/batch_plan.h"
#include "steppe/layout/layout.h"
#include "steppe/recipe/run_config.h"

namespace steppe::plan {

struct SupposedBatch {
  int64_t group = 0;
  int64_t most = 0;  // full micro-batches, though a step may have more; beside them a shorter last one
  bool fill_shards = false;  // rows lengthened until every shard is as long as the longest
};
std::vector<data::Microbatch> supposed_batch(const recipe::RunConfig& run, const layout::LayoutConfig& layout,
                                             int64_t vocab_size, const SupposedBatch& options);

// Tokens of each of the group's micro-batches, and of the largest.
std::vector<int64_t> tokens_of_micro_batches(const recipe::RunConfig& run, const layout::LayoutConfig& layout,
                                             int64_t group);
int64_t supposed_rows(const recipe::RunConfig& run, const layout::LayoutConfig& layout, int64_t group);

// The first rank of the group with the most sequences in a micro-batch; of equals, in all its micro-batches.
int fullest_rank(const recipe::RunConfig& run, const layout::LayoutConfig& layout);

// Of a whole step, for every group alike.
int64_t num_micro_batches(const recipe::RunConfig& run, const layout::LayoutConfig& layout);

}  // namespace steppe::plan
