#include "steppe/ops/moe_dispatch/chunk_sizes.h"

#include <algorithm>

namespace steppe::ops {

int64_t slot_rows(const DispatchPlan& plan, int64_t rank) {
  int64_t most = 0;
  for (const auto& chunk : plan.chunks) most = std::max(most, chunk.rows_of_rank[rank]);
  if (plan.chunk_rows() == 0) return 0;
  const int64_t granule = (plan.chunk_rows() + 31) / 32, granules = (most + granule - 1) / granule;
  return std::min(std::max<int64_t>(33, granules) * granule, plan.degree * plan.chunk_rows());
}

int64_t tile_rows_of(const DispatchPlan& plan, int64_t tile_rows) {
  return tile_rows > 0 ? tile_rows : default_tile_rows(plan.chunk_rows());
}

int64_t default_tile_rows(int64_t chunk_rows) {
  // Products of fewer rows are slow, and more rows only take room.
  constexpr int64_t kRows = 1024;
  const int64_t eighth = (chunk_rows + 7) / 8, thirtysecond = (chunk_rows + 31) / 32;
  return std::max({int64_t{1}, thirtysecond, std::min(kRows, eighth)});
}

}  // namespace steppe::ops
