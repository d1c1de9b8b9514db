#include "steppe/ops/moe_dispatch/ep_plan.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <tuple>
#include <vector>

#include "steppe/base/error.h"

namespace steppe::ops {
namespace {

// The n-th route of a source to an expert.
using Route = std::tuple<int64_t, int64_t, int64_t>;

std::vector<RouteCounts> some_counts(int degree, int64_t experts) {
  std::mt19937 random(degree * 100 + static_cast<int>(experts));
  std::vector<RouteCounts> all;
  const auto add = [&](auto count_of) {
    RouteCounts counts{experts, {}};
    for (int64_t source = 0; source < degree; ++source)
      for (int64_t e = 0; e < experts; ++e) counts.routes.push_back(count_of(source, e));
    all.push_back(counts);
  };
  add([](int64_t, int64_t) { return 0; });
  add([](int64_t, int64_t) { return 3; });
  add([&](int64_t, int64_t) { return static_cast<int64_t>(random() % 5); });
  add([&](int64_t, int64_t) { return static_cast<int64_t>(random() % 4 == 0 ? random() % 9 : 0); });
  add([&](int64_t, int64_t e) { return e == experts - 1 ? 7 : 0; });
  add([&](int64_t source, int64_t) { return source == degree - 1 ? 2 : 0; });
  return all;
}

// What a rank sends, in its send order: by expert.
std::vector<Route> sent_by(const RouteCounts& counts, int64_t source) {
  std::vector<Route> sent;
  for (int64_t e = 0; e < counts.num_experts; ++e)
    for (int64_t n = 0; n < counts.from_to(source, e); ++n) sent.emplace_back(source, e, n);
  return sent;
}

// Also checks that the blocks are a permutation.
std::vector<Route> moved(const std::vector<Route>& rows, const std::vector<kernels::RowBlock>& blocks) {
  std::vector<Route> out(rows.size(), Route{-1, -1, -1});
  std::vector<int> reads(rows.size(), 0);
  for (const auto& block : blocks)
    for (int64_t i = 0; i < block.rows; ++i) {
      EXPECT_EQ(out.at(block.to + i), (Route{-1, -1, -1})) << "written twice";
      out.at(block.to + i) = rows.at(block.from + i);
      ++reads.at(block.from + i);
    }
  EXPECT_TRUE(std::all_of(reads.begin(), reads.end(), [](int n) { return n == 1; }));
  return out;
}

// The rows that reach `rank`, by source.
std::vector<Route> received_by(const RouteCounts& counts, const std::vector<EpPlan>& plans, int rank) {
  std::vector<Route> received;
  for (size_t source = 0; source < plans.size(); ++source) {
    const auto sent = sent_by(counts, static_cast<int64_t>(source));
    int64_t begin = 0;
    for (int to = 0; to < rank; ++to) begin += plans[source].send_rows[to];
    const int64_t rows = plans[source].send_rows[rank];
    EXPECT_EQ(plans[rank].receive_rows[source], rows);
    EXPECT_LE(begin + rows, static_cast<int64_t>(sent.size()));
    received.insert(received.end(), sent.begin() + begin, sent.begin() + begin + rows);
  }
  return received;
}

void expect_a_plan(const RouteCounts& counts, int degree) {
  const int64_t local = counts.num_experts / degree;
  std::vector<EpPlan> plans;
  for (int rank = 0; rank < degree; ++rank) plans.push_back(plan_ep(counts, rank, degree));
  for (int rank = 0; rank < degree; ++rank) {
    const EpPlan& plan = plans[rank];
    const auto sent = sent_by(counts, rank);
    ASSERT_EQ(plan.num_sent, static_cast<int64_t>(sent.size()));
    int64_t slots_before = 0;
    for (int64_t e = 0; e < counts.num_experts; ++e) {
      EXPECT_EQ(plan.first_slot_of_expert.at(e), slots_before);
      slots_before += counts.from_to(rank, e);
    }
    const auto received = received_by(counts, plans, rank);
    ASSERT_EQ(plan.num_received, static_cast<int64_t>(received.size()));
    const auto ordered = moved(received, plan.to_expert_order);
    // Every route to the rank's experts, once: by expert, by source, in the source's order.
    std::vector<Route> want;
    for (int64_t e = 0; e < local; ++e) {
      int64_t rows = 0;
      for (int64_t source = 0; source < degree; ++source)
        for (int64_t n = 0; n < counts.from_to(source, rank * local + e); ++n, ++rows)
          want.emplace_back(source, rank * local + e, n);
      EXPECT_EQ(plan.rows_of_expert.at(e), rows);
    }
    EXPECT_EQ(ordered, want);
    EXPECT_EQ(moved(ordered, plan.to_source_order), received);
  }
}

TEST(EpPlan, SendsEveryRouteOnceToTheRankOfItsExpertAndBack) {
  for (const int degree : {1, 2, 3, 4, 7})
    for (const int64_t per_rank : {1, 2, 5})
      for (const auto& counts : some_counts(degree, degree * per_rank)) {
        SCOPED_TRACE(fmt::format("degree {}, {} experts a rank", degree, per_rank));
        expect_a_plan(counts, degree);
      }
}

TEST(EpPlan, CountsThatDoNotFitAreABrokenInvariant) {
  EXPECT_THROW(plan_ep({6, std::vector<int64_t>(24, 1)}, 0, 4), InternalError);
  EXPECT_THROW(plan_ep({8, std::vector<int64_t>(24, 1)}, 0, 4), InternalError);
}

}  // namespace
}  // namespace steppe::ops
