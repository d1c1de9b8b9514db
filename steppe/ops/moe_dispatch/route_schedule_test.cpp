// Rows followed from source to expert and back, as labels.
#include "steppe/ops/moe_dispatch/route_schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <tuple>
#include <vector>

#include "steppe/ops/moe_dispatch/plan_cases_test.h"

namespace steppe::ops {
namespace {

using Route = std::tuple<int64_t, int64_t, int64_t>;  // source, expert, position within its cell
using kernels::RowBlock;

std::vector<Route> moved(const std::vector<Route>& rows, const std::vector<RowBlock>& blocks) {
  std::vector<Route> out(rows.size(), Route{-1, -1, -1});
  for (const auto& block : blocks)
    for (int64_t i = 0; i < block.rows; ++i) {
      EXPECT_EQ(out.at(block.to + i), (Route{-1, -1, -1})) << "written twice";
      out.at(block.to + i) = rows.at(block.from + i);
    }
  return out;
}

std::vector<Route> sent_by(const RouteCounts& counts, const RouteSchedule& schedule, int64_t source,
                           int64_t chunk) {
  std::vector<Route> sorted;
  for (int64_t e = 0; e < counts.num_experts; ++e) {
    EXPECT_EQ(schedule.first_slot_of_expert[e], static_cast<int64_t>(sorted.size()));
    for (int64_t n = 0; n < counts.of(source, chunk)[e]; ++n) sorted.emplace_back(source, e, n);
  }
  EXPECT_EQ(schedule.num_sent, static_cast<int64_t>(sorted.size()));
  return schedule.to_destination_order.empty() ? sorted : moved(sorted, schedule.to_destination_order);
}

void expect_every_route_reaches_its_expert(const PlanCase& c) {
  const auto plan = plan_dispatch(c.counts, c.degree, c.top_k, options_of(c));
  const int64_t local = c.counts.num_experts / c.degree;
  for (int64_t chunk = 0; chunk < plan.num_chunks(); ++chunk) {
    std::vector<RouteSchedule> schedules;
    std::vector<std::vector<Route>> sent;
    for (int64_t rank = 0; rank < c.degree; ++rank) {
      schedules.push_back(schedule_routes(c.counts, plan, chunk, rank));
      sent.push_back(sent_by(c.counts, schedules.back(), rank, chunk));
    }
    std::vector<Route> seen, all;
    for (int64_t rank = 0; rank < c.degree; ++rank) {
      const auto& schedule = schedules[rank];
      EXPECT_EQ(schedule.num_received, plan.chunks[chunk].rows_of_rank[rank]);
      std::vector<Route> received;
      for (int64_t source = 0; source < c.degree; ++source) {
        EXPECT_EQ(schedule.receive_rows[source], schedules[source].send_rows[rank]);
        int64_t begin = 0;
        for (int64_t d = 0; d < rank; ++d) begin += schedules[source].send_rows[d];
        received.insert(received.end(), sent[source].begin() + begin,
                        sent[source].begin() + begin + schedule.receive_rows[source]);
      }
      const auto ordered = moved(received, schedule.to_expert_order);
      EXPECT_EQ(moved(ordered, schedule.to_source_order), received);
      int64_t row = 0;
      for (size_t item = 0; item < schedule.rows_of_expert.size(); ++item) {
        const auto foreign = static_cast<int64_t>(item) - local;
        const int64_t expert =
            foreign < 0 ? rank * local + static_cast<int64_t>(item) : plan.helpers.experts_of(rank)[foreign];
        const int64_t begin = row;
        for (int64_t i = 0; i < schedule.rows_of_expert[item]; ++i, ++row)
          EXPECT_EQ(std::get<1>(ordered.at(row)), expert);
        EXPECT_TRUE(std::is_sorted(ordered.begin() + begin, ordered.begin() + row)) << "by source";
      }
      seen.insert(seen.end(), ordered.begin(), ordered.end());
      for (int64_t e = 0; e < c.counts.num_experts; ++e)
        for (int64_t n = 0; n < c.counts.of(rank, chunk)[e]; ++n) all.emplace_back(rank, e, n);
    }
    std::sort(seen.begin(), seen.end());
    EXPECT_EQ(seen, all) << "every route once";
  }
}

TEST(RouteSchedule, EveryRouteReachesItsExpertOnceAndComesBack) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(seed);
    expect_every_route_reaches_its_expert(random_case(seed));
  }
}

// Plain expert parallelism.
TEST(RouteSchedule, WhereNobodyMayHelpRoutesGoToTheirExpertsOwners) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE(seed);
    const auto c = random_case(seed);
    auto options = options_of(c);
    options.least_loaded.max_helpers = 0;
    const auto plan = plan_dispatch(c.counts, c.degree, c.top_k, options);
    EXPECT_EQ(plan.helpers.most(), 0);
    const int64_t local = c.counts.num_experts / c.degree;
    for (int64_t chunk = 0; chunk < plan.num_chunks(); ++chunk)
      for (int64_t rank = 0; rank < c.degree; ++rank) {
        const auto schedule = schedule_routes(c.counts, plan, chunk, rank);
        EXPECT_TRUE(schedule.to_destination_order.empty()) << "sorted by expert is by destination";
        EXPECT_EQ(static_cast<int64_t>(schedule.rows_of_expert.size()), local);
        std::vector<int64_t> to_owner(c.degree, 0);
        for (int64_t e = 0; e < c.counts.num_experts; ++e) to_owner[e / local] += c.counts.of(rank, chunk)[e];
        EXPECT_EQ(schedule.send_rows, to_owner);
      }
  }
}

TEST(RouteSchedule, ClippedBlocksAreThoseOfTheRange) {
  const std::vector<RowBlock> blocks{{0, 10, 4}, {4, 0, 3}, {7, 20, 5}};
  const auto clipped = clip_blocks(blocks, 2, 6);
  ASSERT_EQ(clipped.size(), 3u);
  EXPECT_EQ(std::tuple(clipped[0].to, clipped[0].from, clipped[0].rows), std::tuple(0, 12, 2));
  EXPECT_EQ(std::tuple(clipped[1].to, clipped[1].from, clipped[1].rows), std::tuple(2, 0, 3));
  EXPECT_EQ(std::tuple(clipped[2].to, clipped[2].from, clipped[2].rows), std::tuple(5, 20, 1));
  EXPECT_TRUE(clip_blocks(blocks, 12, 3).empty());
  EXPECT_EQ(clip_blocks(blocks, 4, 3).size(), 1u);
}

}  // namespace
}  // namespace steppe::ops
