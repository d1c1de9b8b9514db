// Where every row goes under plain expert parallelism: a pure host function of the route counts.
#pragma once

#include <cstdint>
#include <vector>

#include "steppe/kernels/permute.h"
#include "steppe/ops/moe_dispatch/moe_dispatch.h"

namespace steppe::ops {

struct EpPlan {
  std::vector<int64_t> first_slot_of_expert;  // E: where an expert's routes begin in this rank's send order
  std::vector<int64_t> send_rows;             // E_p
  std::vector<int64_t> receive_rows;          // E_p
  std::vector<int64_t> rows_of_expert;        // E/E_p local experts, from all sources
  std::vector<kernels::RowBlock> to_expert_order;  // received rows, (source, expert) → (expert, source)
  std::vector<kernels::RowBlock> to_source_order;  // the way back
  int64_t num_sent = 0, num_received = 0;
};

EpPlan plan_ep(const RouteCounts& counts, int rank, int degree);

}  // namespace steppe::ops
