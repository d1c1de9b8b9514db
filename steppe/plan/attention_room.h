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
// activation_checkpoint.mode = "selective". Where what stands for the device's memory is the node's, outputs
// on both come out of what the node has left. Where that cannot hold those that would travel, the room is too
// small for any to (offload/attention_outputs.h).
std::optional<int64_t> attention_output_room(const recipe::RunConfig& run, const DryRunOptions& options,
                                             const Limits& limits);

}  // namespace steppe::plan
