#include "steppe/offload/offload_config.h"

#include <algorithm>

#include "steppe/base/error.h"
#include "steppe/memory/host_arena.h"

namespace steppe::offload {

using memory::HostArena;

int64_t host_share(int64_t node_budget, int64_t ranks_per_node) {
  STEPPE_ASSERT(ranks_per_node > 0, "[offload] ranks_per_node must be above 0, got {}", ranks_per_node);
  return node_budget / ranks_per_node / HostArena::kAlignment * HostArena::kAlignment;
}

int64_t BoundaryBytes::of_one() const {
  return HostArena::aligned(largest_num_tokens * hidden_size * itemsize);
}

int64_t boundary_arena_bytes(BoundaryPolicy policy, int64_t share, const BoundaryBytes& boundaries) {
  if (policy == BoundaryPolicy::kNone) return 0;
  const int64_t all = boundaries.num_layers * boundaries.of_one();
  STEPPE_CHECK_VALUE(policy != BoundaryPolicy::kAll || share >= all,
                     "[offload] offload.host_budget must hold {} boundaries of {} bytes = {} bytes on each "
                     "rank with offload.activations = \"all\", but a rank's share is {}",
                     boundaries.num_layers, boundaries.of_one(), all, share);
  return std::min(share, all);
}

}  // namespace steppe::offload
