#include "steppe/plan/attention_room.h"

#include <algorithm>
#include <limits>

#include "steppe/plan/budget.h"
#include "steppe/train/assembly.h"
#include "steppe/train/configure.h"

namespace steppe::plan {
namespace {

// Of a rank, beyond the run without them.
struct Free {
  int64_t device = 0;
  int64_t node = 0;           // its share
  bool are_the_same = false;  // bytes on the device are bytes of the node
};

Free free_beside(const Limits& limits, const Needs& needs) {
  const int64_t device = limits.device_memory - limits.rounding_bytes - needs.device;
  if (limits.is_share) return {device, device, true};
  return {device, (limits.node_memory - needs.node) / limits.ranks_per_node, limits.libraries_bytes > 0};
}

}  // namespace

std::optional<offload::OutputBudgets> attention_output_room(const recipe::RunConfig& run,
                                                            const DryRunOptions& options,
                                                            const Limits& limits) {
  if (run.activation_checkpoint.mode != "selective") return std::nullopt;
  auto recomputing = run;
  recomputing.activation_checkpoint.mode = "full";
  auto quiet = options;
  quiet.record_timeline = false;
  const auto without = dry_run_heaviest(recomputing, quiet);
  const int64_t host = without.host.bytes + make_budget(run, without.rank, options).checkpoint_snapshot;
  const auto free = free_beside(limits, needs_of(limits, without.device.bytes, limits.ranks_per_node * host));
  if (free.device <= 0 || free.node < 0) return offload::OutputBudgets{};
  if (!free.are_the_same) return offload::OutputBudgets{free.device, free.node};

  // Whatever the host has, those that travel take as much of the device.
  offload::OutputBudgets room{std::min(free.device, free.node), std::numeric_limits<int64_t>::max()};
  const train::RankShape shape(run, without.rank, options.world_size);
  room.host_bytes =
      free.node - train::offload_config(run, shape.model, shape.layout_config, room).output_device_bytes;
  return room;
}

}  // namespace steppe::plan
