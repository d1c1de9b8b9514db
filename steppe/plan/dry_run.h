// The dry run is the run: the step that trains, on `meta`, over groups that shape their results, with a
// routing profile in place of router values. Nothing is computed; every allocation is booked, every operation
// counted.
//
// A rank alone supposes that its peers send what it sends: exact where all shards are alike, and no less than
// the truth on the rank whose shard is fullest. dry_run_all() runs every rank and lets them exchange their
// sizes: exact on each. Of a step with many micro-batches two are run; the counters are of the whole step.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "steppe/base/counters.h"
#include "steppe/data/batch_plan.h"
#include "steppe/memory/ledger.h"
#include "steppe/offload/attention_outputs.h"
#include "steppe/recipe/run_config.h"

namespace steppe::plan {

struct DryRunOptions {
  int world_size = 1;
  int num_threads = 1;           // of a rank; on a CPU attention's scratch depends on it
  bool as_cuda = false;          // attention's scratch is a CUDA device's
  bool record_timeline = false;  // of the step, with what was alive before
  std::optional<offload::OutputBudgets> attention_output_bytes;  // train::offload_config()'s
  // Micro-batches of a group, in place of the supposed ones; all of them are run.
  std::function<std::vector<data::Microbatch>(int64_t group)> batch_of_group;
};

struct DryRun {
  int rank = 0;
  memory::Peak device, host;
  memory::BytesByCategory own_peak{};    // of each category by itself, on the device
  memory::BytesByCategory persistent{};  // before the step: weights, gradients, optimizer
  memory::BytesByCategory persistent_host{};
  Counters counters;              // of a step of this rank
  Counters update;                // the optimizer's part of them
  int64_t num_micro_batches = 0;  // of a step
  int64_t num_tokens = 0;         // of this rank in its largest micro-batch
  int64_t num_allocations = 0;    // of the micro-batches that were run
  std::string timeline;           // memory::TimelineRecording's object, or empty
};

DryRun dry_run(const recipe::RunConfig& run, const DryRunOptions& options, int rank);
std::vector<DryRun> dry_run_all(const recipe::RunConfig& run, const DryRunOptions& options);

// The ranks among which the fullest is: of the group with the most sequences the first; where parameters are
// frozen, also that which trains the most; where helpers take over foreign experts, that which takes the
// most.
std::vector<int> heaviest_candidates(const recipe::RunConfig& run, int world_size);
// The fullest of those.
DryRun dry_run_heaviest(const recipe::RunConfig& run, const DryRunOptions& options);

}  // namespace steppe::plan
