#include "steppe/plan/attention_room.h"

#include <algorithm>

#include "steppe/plan/budget.h"
#include "steppe/train/assembly.h"
#include "steppe/train/configure.h"

namespace steppe::plan {
namespace {

// In host memory, of a rank, with all the outputs that may come to lie there.
int64_t host_bytes(const recipe::RunConfig& run, const DryRunOptions& options, const DryRun& without) {
  const train::RankShape shape(run, without.rank, options.world_size);
  return without.host.bytes + make_budget(run, without.rank, options).checkpoint_snapshot +
         train::offload_config(run, shape.model, shape.layout_config).output_host_bytes;
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
  int64_t room = limits.device_memory - limits.reserved_bytes - without.device.bytes;
  if (limits.is_share) room -= host_bytes(run, options, without);
  return std::max<int64_t>(0, room);
}

}  // namespace steppe::plan
