#include "steppe/ops/moe_dispatch/ep_plan.h"

#include <numeric>

#include "steppe/base/error.h"

namespace steppe::ops {

EpPlan plan_ep(const RouteCounts& counts, int rank, int degree) {
  const int64_t num_experts = counts.num_experts, local = num_experts / degree;
  STEPPE_ASSERT(
      local * degree == num_experts && static_cast<int64_t>(counts.routes.size()) == degree * num_experts,
      "[ep_plan] {} counts of {} experts do not fit a group of {}", counts.routes.size(), num_experts,
      degree);
  EpPlan plan;
  plan.first_slot_of_expert.resize(num_experts);
  plan.send_rows.assign(degree, 0);
  plan.receive_rows.assign(degree, 0);
  plan.rows_of_expert.assign(local, 0);
  for (int64_t e = 0; e < num_experts; ++e) {
    plan.first_slot_of_expert[e] = plan.num_sent;
    plan.send_rows[e / local] += counts.from_to(rank, e);
    plan.num_sent += counts.from_to(rank, e);
  }
  const int64_t first_expert = rank * local;
  for (int64_t source = 0; source < degree; ++source) {
    for (int64_t e = 0; e < local; ++e) {
      const int64_t rows = counts.from_to(source, first_expert + e);
      plan.receive_rows[source] += rows;
      plan.rows_of_expert[e] += rows;
      plan.num_received += rows;
    }
  }
  // An expert's rows in expert order: by source.
  std::vector<int64_t> next(local);
  std::exclusive_scan(plan.rows_of_expert.begin(), plan.rows_of_expert.end(), next.begin(), int64_t{0});
  int64_t arrived = 0;
  for (int64_t source = 0; source < degree; ++source) {
    for (int64_t e = 0; e < local; ++e) {
      const int64_t rows = counts.from_to(source, first_expert + e);
      if (rows == 0) continue;
      plan.to_expert_order.push_back({next[e], arrived, rows});
      plan.to_source_order.push_back({arrived, next[e], rows});
      next[e] += rows, arrived += rows;
    }
  }
  return plan;
}

}  // namespace steppe::ops
