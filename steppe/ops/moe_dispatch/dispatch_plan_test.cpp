// Properties of the plans of a dispatch, on routings at random, adversarial ones and the profiles.
#include "steppe/ops/moe_dispatch/dispatch_plan.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "steppe/base/error.h"
#include "steppe/ops/moe_dispatch/plan_cases_test.h"
#include "steppe/ops/moe_dispatch/route_schedule.h"

namespace steppe::ops {
namespace {

int64_t sum(std::span<const int64_t> values) {
  return std::accumulate(values.begin(), values.end(), int64_t{0});
}

std::vector<int64_t> loads_of(const RouteCounts& counts) {
  std::vector<int64_t> loads(counts.num_experts, 0);
  for (int64_t source = 0; source < counts.num_sources(); ++source)
    for (int64_t e = 0; e < counts.num_experts; ++e) loads[e] += counts.from_to(source, e);
  return loads;
}

void expect_sound(const Assignment& assignment, std::span<const int64_t> load_E, int64_t degree) {
  for (const auto& moved : assignment.moved) {
    EXPECT_EQ(moved.load, load_E[moved.expert]);
    int64_t offset = 0;
    std::set<int64_t> ranks;
    for (const auto& piece : moved.pieces) {
      EXPECT_EQ(piece.begin, offset);
      EXPECT_GT(piece.end, piece.begin);
      EXPECT_TRUE(piece.rank >= 0 && piece.rank < degree && ranks.insert(piece.rank).second);
      offset = piece.end;
    }
    EXPECT_EQ(offset, moved.load) << "every row once";
  }
}

TEST(LeastLoaded, SharesOutEveryRowByTheRules) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    const auto c = random_case(seed);
    SCOPED_TRACE(c.name);
    const auto load_E = loads_of(c.counts);
    const LeastLoadedOptions options{.imbalance_threshold = 0, .min_rows = c.min_rows};
    Helpers helpers(c.degree, c.counts.num_experts);
    const auto assignment = assign_least_loaded(load_E, c.degree, options, helpers);
    expect_sound(assignment, load_E, c.degree);
    const int64_t local = c.counts.num_experts / c.degree, total = sum(load_E);
    std::vector<int64_t> rows(c.degree, 0);
    for (int64_t e = 0; e < c.counts.num_experts; ++e)
      if (assignment.find(e) == nullptr) rows[e / local] += load_E[e];
    for (const auto& moved : assignment.moved)
      for (const auto& piece : moved.pieces) {
        rows[piece.rank] += piece.end - piece.begin;
        if (piece.rank == moved.expert / local) continue;
        const auto& held = helpers.experts_of(piece.rank);
        EXPECT_EQ(std::count(held.begin(), held.end(), moved.expert), 1);
        // A smaller piece only finishes its expert.
        if (piece.end < moved.load) {
          EXPECT_GE(piece.end - piece.begin, c.min_rows);
        }
      }
    EXPECT_EQ(sum(rows), total);
    EXPECT_LE(*std::max_element(rows.begin(), rows.end()),
              (total + c.degree - 1) / c.degree + (c.degree - 1) * c.min_rows);
  }
}

TEST(LeastLoaded, WorkedExample) {
  // Two ranks of two experts, capacity 50. Expert 0 has 70: its own rank has 10 pending and takes 40; 30
  // spill.
  Helpers helpers(2, 4);
  const auto assignment = assign_least_loaded(std::vector<int64_t>{70, 10, 12, 8}, 2,
                                              {.imbalance_threshold = 1.3, .min_rows = 5}, helpers);
  ASSERT_EQ(assignment.moved.size(), 1u);
  const auto& moved = assignment.moved[0];
  EXPECT_EQ(moved.expert, 0);
  ASSERT_EQ(moved.pieces.size(), 2u);
  EXPECT_EQ(moved.pieces[0].rank, 0);
  EXPECT_EQ(moved.pieces[0].end, 40);
  EXPECT_EQ(moved.pieces[1].rank, 1);
  EXPECT_EQ(moved.pieces[1].end, 70);
  EXPECT_EQ(helpers.experts_of(1), std::vector<int64_t>{0});
  EXPECT_EQ(helpers.most(), 1);
}

TEST(LeastLoaded, LeavesABalancedRoutingAlone) {
  Helpers helpers(2, 4);
  // The largest is 1.28 times the mean, then 1.32 times.
  EXPECT_TRUE(
      assign_least_loaded(std::vector<int64_t>{128, 122, 75, 75}, 2, {.min_rows = 1}, helpers).moved.empty());
  EXPECT_FALSE(
      assign_least_loaded(std::vector<int64_t>{132, 118, 75, 75}, 2, {.min_rows = 1}, helpers).moved.empty());
}

TEST(LeastLoaded, CapsHelpers) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const auto c = random_case(seed);
    for (const int64_t most : {0, 1, 2}) {
      auto options = options_of(c);
      options.least_loaded.max_helpers = most;
      const auto plan = plan_dispatch(c.counts, c.degree, c.top_k, options);
      EXPECT_LE(plan.helpers.most(), most);
      expect_sound(plan.whole, loads_of(c.counts), c.degree);
      for (const auto& chunk : plan.chunks)
        EXPECT_LE(*std::max_element(chunk.rows_of_rank.begin(), chunk.rows_of_rank.end()),
                  plan.bound(options));
    }
  }
}

// The bound: derived, so tested on whatever can be thought of.
void expect_bounded(const PlanCase& c) {
  SCOPED_TRACE(c.name);
  const auto options = options_of(c);
  const auto plan = plan_dispatch(c.counts, c.degree, c.top_k, options);
  for (const auto& chunk : plan.chunks)
    for (const int64_t rows : chunk.rows_of_rank) {
      EXPECT_LE(rows, plan.bound(options));
      EXPECT_LE(rows, c.degree * c.top_k * plan.chunk_tokens);
    }
}

TEST(DispatchPlan, NoChunkFillsARankBeyondTheBound) {
  int64_t replanned = 0;
  for (uint64_t seed = 0; seed < 600; ++seed) {
    const auto c = random_case(seed);
    expect_bounded(c);
    replanned += plan_dispatch(c.counts, c.degree, c.top_k, options_of(c)).num_replanned();
  }
  EXPECT_GT(replanned, 100);
}

TEST(DispatchPlan, ARouterThatFollowsTheChunksIsPlannedAgain) {
  const auto c = profile_case({RoutingProfile::Kind::kStride}, 32, 8, 4, 8192, 10);
  const auto options = options_of(c);
  const auto plan = plan_dispatch(c.counts, c.degree, c.top_k, options);
  EXPECT_EQ(plan.num_replanned(), 10);
  for (const auto& chunk : plan.chunks)
    for (const int64_t rows : chunk.rows_of_rank) EXPECT_LE(rows, 12 * plan.chunk_rows() / 10);
  // Without it a rank receives everything in some chunk.
  auto never = options;
  never.replan_threshold = 0;
  const auto unplanned = plan_dispatch(c.counts, c.degree, c.top_k, never);
  int64_t most = 0;
  for (const auto& chunk : unplanned.chunks)
    most = std::max(most, *std::max_element(chunk.rows_of_rank.begin(), chunk.rows_of_rank.end()));
  EXPECT_GT(most, 5 * plan.chunk_rows());
}

TEST(DispatchPlan, ProfilesSpreadEvenlyWithFewHelpers) {
  for (const auto& [experts, degree, k, helpers] : {std::tuple{128, 8, 4, 3}, std::tuple{384, 64, 8, 4}})
    for (const char* profile : kProfiles) {
      const auto c = profile_case(RoutingProfile::parse(profile), experts, degree, k, 65536, 10);
      SCOPED_TRACE(c.name);
      auto options = options_of(c);
      options.least_loaded.min_rows = 1024;
      const auto plan = plan_dispatch(c.counts, c.degree, c.top_k, options);
      EXPECT_LE(plan.helpers.most(), helpers);
      for (const auto& chunk : plan.chunks)
        for (const int64_t rows : chunk.rows_of_rank) EXPECT_LE(rows, plan.bound(options));
    }
}

TEST(DispatchPlan, CountsThatDoNotFitAreABrokenInvariant) {
  EXPECT_THROW(plan_dispatch({6, std::vector<int64_t>(24, 1)}, 4, 1, {}), InternalError);
  EXPECT_THROW(plan_dispatch({8, std::vector<int64_t>(24, 1)}, 4, 1, {}), InternalError);
}

TEST(DispatchPlan, CutsOfACellCoverIt) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const auto c = random_case(seed);
    const auto plan = plan_dispatch(c.counts, c.degree, c.top_k, options_of(c));
    std::vector<CellPart> parts;
    for (int64_t chunk = 0; chunk < plan.num_chunks(); ++chunk)
      for (const auto& moved : plan.assignment(chunk).moved)
        for (int64_t source = 0; source < c.degree; ++source) {
          cut_cell(c.counts, plan, moved, chunk, source, parts);
          ASSERT_EQ(parts.size(), moved.pieces.size());
          int64_t at = 0;
          for (const auto& part : parts) {
            EXPECT_TRUE(part.rows() == 0 || part.begin == at);
            EXPECT_GE(part.rows(), 0);
            at += part.rows();
          }
          EXPECT_EQ(at, c.counts.of(source, chunk)[moved.expert]);
        }
  }
}

TEST(DispatchPlan, CutsLargeCellsExactly) {
  // Offset·rows just below and at multiples of a large load.
  RouteCounts counts{2, {9999991, 0, 9999973, 0}};
  const DispatchPlanOptions options{{.imbalance_threshold = 1.3, .min_rows = 1}, 0};
  const auto plan = plan_dispatch(counts, 2, 1, options);
  ASSERT_EQ(plan.whole.moved.size(), 1u);
  const auto& moved = plan.whole.moved[0];
  std::vector<CellPart> parts;
  for (int64_t source = 0; source < 2; ++source) {
    cut_cell(counts, plan, moved, 0, source, parts);
    for (size_t p = 0; p < parts.size(); ++p)
      EXPECT_EQ(parts[p].end, moved.pieces[p].end * counts.of(source, 0)[0] / moved.load);
  }
}

TEST(ChunkSplit, GivesEveryTokenOnce) {
  for (const auto membership : {Membership::kStrided, Membership::kContiguous})
    for (const int64_t tokens : {0, 1, 7, 23})
      for (const int64_t chunks : {1, 3, 10}) {
        const ChunkSplit split{chunks, membership};
        std::vector<int> seen(tokens, 0);
        for (int64_t chunk = 0; chunk < chunks; ++chunk) {
          EXPECT_LE(split.tokens(chunk, tokens), (tokens + chunks - 1) / chunks);
          for (int64_t j = 0; j < split.tokens(chunk, tokens); ++j)
            ++seen.at(split.first_token(chunk, tokens) + j * split.stride());
        }
        EXPECT_TRUE(std::all_of(seen.begin(), seen.end(), [](int n) { return n == 1; }));
      }
  EXPECT_EQ(number_of_chunks(0, 4096, 10), 1);
  EXPECT_EQ(number_of_chunks(4096, 4096, 10), 1);
  EXPECT_EQ(number_of_chunks(4097, 4096, 10), 2);
  EXPECT_EQ(number_of_chunks(65536, 4096, 10), 10);
}

TEST(RoutingProfile, NamesWhatItMayBe) {
  for (const char* text : {"", "30", "30/", "/16", "101/4", "30/0", "skewed"})
    EXPECT_THROW(RoutingProfile::parse(text), ValueError) << text;
  for (const char* text : {"balanced", "95/16", "one", "stride", "random"})
    EXPECT_EQ(RoutingProfile::parse(text).name(), text);
}

}  // namespace
}  // namespace steppe::ops
