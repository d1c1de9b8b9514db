// Rows of the buffers of a chunked dispatch: pure host functions of the plan. No Torch.
#pragma once

#include <cstdint>

#include "steppe/ops/moe_dispatch/dispatch_plan.h"

namespace steppe::ops {

// Of a destination slot of `rank`: max(33, ⌈R/g⌉) granules of g = ⌈k·c_eff/32⌉ rows, R the rank's largest
// chunk; at most E_p·k·c_eff.
int64_t slot_rows(const DispatchPlan& plan, int64_t rank);

// Of an expert tile: as given, or where `tile_rows` is 0 by the chunk.
int64_t tile_rows_of(const DispatchPlan& plan, int64_t tile_rows);
// max(⌈R/32⌉, min(1024, ⌈R/8⌉)) for chunks of R = k·c_eff rows.
int64_t default_tile_rows(int64_t chunk_rows);

}  // namespace steppe::ops
