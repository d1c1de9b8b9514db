#include "steppe/plan/attention_room.h"

#include <algorithm>

#include "steppe/offload/attention_outputs.h"
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

// With less than two outputs' room nobody travels.
int64_t room_to_stay(const recipe::RunConfig& run, const train::RankShape& shape) {
  const auto cost = offload::attention_output_cost(
      run.training.seq_length * run.training.micro_batch_size,
      shape.model.num_attention_heads / shape.layout_config.ulysses_degree, shape.model.head_dim,
      static_cast<int64_t>(c10::elementSize(train::compute_dtype(run))));
  return 2 * cost.device_bytes - 1;
}

}  // namespace

std::optional<int64_t> attention_output_room(const recipe::RunConfig& run, const DryRunOptions& options,
                                             const Limits& limits) {
  if (run.activation_checkpoint.mode != "selective") return std::nullopt;
  auto recomputing = run;
  recomputing.activation_checkpoint.mode = "full";
  auto quiet = options;
  quiet.record_timeline = false;
  const auto without = dry_run_heaviest(recomputing, quiet);
  const int64_t host = without.host.bytes + make_budget(run, without.rank, options).checkpoint_snapshot;
  const auto free = free_beside(limits, needs_of(limits, without.device.bytes, limits.ranks_per_node * host));
  if (free.device <= 0 || free.node < 0) return 0;

  const train::RankShape shape(run, without.rank, options.world_size);
  const auto travelling = [&](std::optional<int64_t> room) {
    return train::offload_config(run, shape.model, shape.layout_config, room).output_host_bytes;
  };
  if (free.are_the_same) {
    const int64_t room = std::min(free.device, free.node);
    return std::max(room - travelling({}), std::min(room, room_to_stay(run, shape)));
  }
  if (travelling(free.device) <= free.node) return free.device;
  return std::min(free.device, room_to_stay(run, shape));
}

}  // namespace steppe::plan
