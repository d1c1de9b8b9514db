// The room that kept attention outputs have on a device: what the machine has beyond what the run needs
// without them, found by running it dry. Kept outputs never add more to any instant than their own bytes, so
// a run that keeps within the room fits where the run without them does.
#pragma once

#include <cstdint>
#include <optional>

#include "steppe/plan/dry_run.h"
#include "steppe/plan/limits.h"

namespace steppe::plan {

// Of the fullest rank, for all of them; 0 where the run does not fit at all. Nothing unless
// activation_checkpoint.mode = "selective". Where the device's memory is a share of the node's, what a rank
// holds in host memory comes out of the same, and so would outputs that offload.host_budget has room for.
std::optional<int64_t> attention_output_room(const recipe::RunConfig& run, const DryRunOptions& options,
                                             const Limits& limits);

}  // namespace steppe::plan
