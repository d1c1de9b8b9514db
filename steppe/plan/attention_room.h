// The room that kept attention outputs have on a device and on the host: what the machine has beyond what the
// run needs without them, found by running it dry. Kept outputs never add more to any instant than their own
// bytes, so a run that keeps within the room fits where the run without them does.
#pragma once

#include <cstdint>
#include <optional>

#include "steppe/offload/attention_outputs.h"
#include "steppe/plan/dry_run.h"
#include "steppe/plan/limits.h"

namespace steppe::plan {

// Of the fullest rank, for all of them; none where the run does not fit at all. Nothing unless
// activation_checkpoint.mode = "selective". Where what stands for the device's memory is the node's, the host
// has what those on the device leave of it.
std::optional<offload::OutputBudgets> attention_output_room(const recipe::RunConfig& run,
                                                            const DryRunOptions& options,
                                                            const Limits& limits);

}  // namespace steppe::plan
