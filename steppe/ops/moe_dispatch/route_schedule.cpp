#include "steppe/ops/moe_dispatch/route_schedule.h"

#include <algorithm>
#include <numeric>

namespace steppe::ops {
namespace {

using kernels::RowBlock;

// Calls use(expert, part of the cell) for every item of `destination`, in order, with what `source` sends it.
template <class Use>
void for_items(const RouteCounts& counts, const DispatchPlan& plan, int64_t chunk, int64_t source,
               int64_t destination, Use use) {
  const int64_t local = plan.num_experts / plan.degree;
  const auto& assignment = plan.assignment(chunk);
  std::vector<CellPart> parts;
  const auto part_at_destination = [&](int64_t expert) -> CellPart {
    const auto* moved = assignment.find(expert);
    if (moved == nullptr) {
      return {0, expert / local == destination ? counts.of(source, chunk)[expert] : 0};
    }
    cut_cell(counts, plan, *moved, chunk, source, parts);
    for (size_t p = 0; p < parts.size(); ++p)
      if (moved->pieces[p].rank == destination) return parts[p];
    return {0, 0};
  };
  for (int64_t e = destination * local; e < (destination + 1) * local; ++e) use(e, part_at_destination(e));
  for (const int64_t e : plan.helpers.experts_of(destination)) use(e, part_at_destination(e));
}

void add_block(std::vector<RowBlock>& blocks, const RowBlock& block) {
  if (block.rows == 0) return;
  if (!blocks.empty()) {
    auto& last = blocks.back();
    if (last.to + last.rows == block.to && last.from + last.rows == block.from) {
      last.rows += block.rows;
      return;
    }
  }
  blocks.push_back(block);
}

void schedule_sending(const RouteCounts& counts, const DispatchPlan& plan, int64_t chunk, int64_t rank,
                      RouteSchedule& schedule) {
  const auto own = counts.of(rank, chunk);
  schedule.first_slot_of_expert.resize(own.size());
  std::exclusive_scan(own.begin(), own.end(), schedule.first_slot_of_expert.begin(), int64_t{0});
  schedule.send_rows.assign(plan.degree, 0);
  for (int64_t d = 0; d < plan.degree; ++d) {
    for_items(counts, plan, chunk, rank, d, [&](int64_t expert, const CellPart& part) {
      add_block(schedule.to_destination_order,
                {schedule.num_sent, schedule.first_slot_of_expert[expert] + part.begin, part.rows()});
      schedule.send_rows[d] += part.rows(), schedule.num_sent += part.rows();
    });
  }
  // One block that moves nothing.
  if (schedule.to_destination_order.size() == 1) schedule.to_destination_order.clear();
}

void schedule_receiving(const RouteCounts& counts, const DispatchPlan& plan, int64_t chunk, int64_t rank,
                        RouteSchedule& schedule) {
  std::vector<std::vector<int64_t>> rows_of_source(plan.degree);  // [source][item]
  schedule.receive_rows.assign(plan.degree, 0);
  for (int64_t source = 0; source < plan.degree; ++source) {
    auto& rows = rows_of_source[source];
    for_items(counts, plan, chunk, source, rank,
              [&](int64_t, const CellPart& part) { rows.push_back(part.rows()); });
    schedule.rows_of_expert.resize(rows.size(), 0);
    for (size_t item = 0; item < rows.size(); ++item) schedule.rows_of_expert[item] += rows[item];
    schedule.receive_rows[source] = std::accumulate(rows.begin(), rows.end(), int64_t{0});
    schedule.num_received += schedule.receive_rows[source];
  }
  std::vector<int64_t> arrived(plan.degree);
  std::exclusive_scan(schedule.receive_rows.begin(), schedule.receive_rows.end(), arrived.begin(),
                      int64_t{0});
  int64_t row = 0;
  for (size_t item = 0; item < schedule.rows_of_expert.size(); ++item)
    for (int64_t source = 0; source < plan.degree; ++source) {
      const int64_t rows = rows_of_source[source][item];
      add_block(schedule.to_expert_order, {row, arrived[source], rows});
      row += rows, arrived[source] += rows;
    }
  schedule.to_source_order = reversed(schedule.to_expert_order);
}

}  // namespace

RouteSchedule schedule_routes(const RouteCounts& counts, const DispatchPlan& plan, int64_t chunk,
                              int64_t rank) {
  RouteSchedule schedule;
  schedule_sending(counts, plan, chunk, rank, schedule);
  schedule_receiving(counts, plan, chunk, rank, schedule);
  schedule.num_helped = static_cast<int64_t>(plan.helpers.experts_of(rank).size());
  return schedule;
}

std::vector<RowBlock> clip_blocks(const std::vector<RowBlock>& blocks, int64_t begin, int64_t rows) {
  std::vector<RowBlock> clipped;
  auto block = std::upper_bound(blocks.begin(), blocks.end(), begin,
                                [](int64_t row, const RowBlock& b) { return row < b.to + b.rows; });
  for (; block != blocks.end() && block->to < begin + rows; ++block) {
    const int64_t from = std::max(block->to, begin), to = std::min(block->to + block->rows, begin + rows);
    clipped.push_back({from - begin, block->from + from - block->to, to - from});
  }
  return clipped;
}

std::vector<RowBlock> reversed(const std::vector<RowBlock>& blocks) {
  std::vector<RowBlock> back;
  back.reserve(blocks.size());
  for (const auto& block : blocks) back.push_back({block.from, block.to, block.rows});
  return back;
}

}  // namespace steppe::ops
