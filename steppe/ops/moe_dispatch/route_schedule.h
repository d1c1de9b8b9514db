// Where every row of one rank goes in one chunk: a pure host function of the counts and the plan. No Torch.
// A rank's *items* are its own experts, then the foreign ones it helps with. Its routes are sorted by expert,
// then moved so that those of a destination lie together, by item of that destination. They arrive by source,
// then item; an item's rows, by source, are its expert order.
#pragma once

#include <cstdint>
#include <vector>

#include "steppe/kernels/row_block.h"
#include "steppe/ops/moe_dispatch/dispatch_plan.h"

namespace steppe::ops {

struct RouteSchedule {
  std::vector<int64_t> first_slot_of_expert;  // E: where an expert's routes begin when sorted by expert
  std::vector<kernels::RowBlock> to_destination_order;  // of the sorted routes; empty: they are in it
  std::vector<int64_t> send_rows, receive_rows;         // E_p
  std::vector<int64_t> rows_of_expert;                  // of each item, from all sources
  std::vector<kernels::RowBlock> to_expert_order;       // received rows, (source, item) → (item, source)
  std::vector<kernels::RowBlock> to_source_order;       // the way back
  int64_t num_sent = 0, num_received = 0;
  int64_t num_helped = 0;  // items that are foreign experts
};

RouteSchedule schedule_routes(const RouteCounts& counts, const DispatchPlan& plan, int64_t chunk,
                              int64_t rank);

// Those parts of `blocks` (ascending in `to`) that write rows [begin, begin + rows), with `to` counted from
// begin.
std::vector<kernels::RowBlock> clip_blocks(const std::vector<kernels::RowBlock>& blocks, int64_t begin,
                                           int64_t rows);
// The same moves backwards.
std::vector<kernels::RowBlock> reversed(const std::vector<kernels::RowBlock>& blocks);

}  // namespace steppe::ops
