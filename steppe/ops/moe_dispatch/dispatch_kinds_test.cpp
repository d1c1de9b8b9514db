// Every kind against the oracle: every sort of routing, any number of ranks, chunk counts, helpers.
#include <gtest/gtest.h>

#include <cstdio>
#include <vector>

#include "steppe/memory/scope.h"
#include "steppe/ops/moe_dispatch/agreement_test.h"
#include "steppe/ops/moe_dispatch/plan_cases_test.h"

namespace steppe::ops {
namespace {

TEST(DispatchKinds, AgreeWithTheOracleOnAnyNumberOfRanks) {
  for (const int degree : kDegrees) {
    std::vector<MoeLayer> layers;
    for (const auto routes : kAllRoutes)
      layers.push_back(make_layer(uneven_tokens(degree), routes, at::kFloat));
    layers.push_back(make_layer(std::vector<int64_t>(degree, 0), Routes::kRandom, at::kFloat));
    layers.push_back(stride_layer(degree));
    layers.push_back(biased(make_layer(uneven_tokens(degree), Routes::kPowerLaw, at::kFloat)));
    expect_agreement_on_all_ranks(layers, degree, all_kinds());
  }
}

TEST(DispatchKinds, AgreeWithTheOracleInBf16) {
  for (const int degree : {1, 3}) {
    std::vector<MoeLayer> layers;
    for (const auto routes : {Routes::kPowerLaw, Routes::kListedTwice})
      layers.push_back(make_layer(uneven_tokens(degree), routes, at::kBFloat16));
    expect_agreement_on_all_ranks(layers, degree, all_kinds());
  }
}

// Ranks have unlike numbers of tokens; each follows the profile over its own.
MoeLayer profile_layer(int degree, const RoutingProfile& profile, uint64_t seed) {
  auto layer = make_layer(uneven_tokens(degree), Routes::kRandom, at::kFloat);
  for (int rank = 0; rank < degree; ++rank) {
    const auto ids = rows_of_rank(layer, layer.ids_Nk, rank);
    const RoutingProfile::Shape shape{ids.size(0), kExperts, 2, kExperts / degree,
                                      seed * 100 + static_cast<uint64_t>(rank)};
    for (int64_t t = 0; t < ids.size(0); ++t)
      profile.experts_of(shape, t, {ids.data_ptr<int32_t>() + t * kTopK, static_cast<size_t>(kTopK)});
  }
  return layer;
}

std::vector<MoeLayer> layers_of(int degree, const std::vector<const char*>& profiles,
                                const std::vector<uint64_t>& seeds) {
  std::vector<MoeLayer> layers;
  for (const auto* name : profiles) layers.push_back(profile_layer(degree, RoutingProfile::parse(name), 0));
  for (const auto seed : seeds)
    layers.push_back(profile_layer(degree, RoutingProfile::parse("random"), seed));
  return layers;
}

TEST(DispatchKinds, AgreeWithTheOracleOnSixAndEightRanks) {
  for (const int degree : {6, 8})
    expect_agreement_on_all_ranks(layers_of(degree, {"95/16", "50/4", "one", "stride"}, {1}), degree,
                                  all_kinds());
}

// Run by name, with --gtest_also_run_disabled_tests: takes a minute or two.
TEST(DispatchKinds, DISABLED_AgreeWithTheOracleOnEveryProfile) {
  std::vector<const char*> profiles(std::begin(kProfiles), std::end(kProfiles));
  profiles.insert(profiles.end(), {"one", "stride"});
  for (const int degree : {1, 2, 3, 4, 6, 8}) {
    const auto layers = layers_of(degree, profiles, {1, 2, 3, 4, 5, 6, 7, 8});
    const auto worst = expect_agreement_on_all_ranks(layers, degree, all_kinds());
    std::printf("E_p=%d: %zu routings x %zu kinds, largest error %.2g, %.0f%% of its bound\n", degree,
                layers.size(), all_kinds().size(), worst.error, 100 * worst.share_of_bound);
  }
}

TEST(DispatchKinds, RepeatBitForBit) {
  for (const int degree : kDegrees) {
    const auto layer = make_layer(uneven_tokens(degree), Routes::kPowerLaw, at::kFloat);
    comm::run_ranks(degree, [&](int rank, const auto& store) {
      const auto group = comm::make_world(rank, degree, store);
      for (const auto& kind : all_kinds()) {
        SCOPED_TRACE(kind.name);
        auto once = part_for(layer, *group, at::kCPU, kind), again = part_for(layer, *group, at::kCPU, kind);
        Counters counters;
        run_kind(context_of(once, counters), *group, once, kind);
        run_kind(context_of(again, counters), *group, again, kind);
        EXPECT_TRUE(at::equal(once.y_NH, again.y_NH));
        EXPECT_TRUE(at::equal(once.dx_NH, again.dx_NH));
        EXPECT_TRUE(at::equal(once.grads.dweights_Nk, again.grads.dweights_Nk));
        EXPECT_TRUE(at::equal(once.grads.experts.gate_up_E2IH, again.grads.experts.gate_up_E2IH));
        EXPECT_TRUE(at::equal(once.grads.experts.down_EHI, again.grads.experts.down_EHI));
      }
    });
  }
}

TEST(DispatchKinds, GradientOfXMayTakeItsPlace) {
  for (const int degree : {1, 3}) {
    const auto layer = make_layer(uneven_tokens(degree), Routes::kPowerLaw, at::kFloat);
    comm::run_ranks(degree, [&](int rank, const auto& store) {
      const auto group = comm::make_world(rank, degree, store);
      for (const auto& kind : all_kinds()) {
        SCOPED_TRACE(kind.name);
        auto beside = part_for(layer, *group, at::kCPU, kind),
             in_place = part_for(layer, *group, at::kCPU, kind);
        in_place.grads.dx_NH = in_place.x_NH;
        Counters counters;
        run_kind(context_of(beside, counters), *group, beside, kind);
        run_kind(context_of(in_place, counters), *group, in_place, kind);
        EXPECT_TRUE(at::equal(beside.dx_NH, in_place.x_NH));
        EXPECT_TRUE(at::equal(beside.grads.experts.gate_up_E2IH, in_place.grads.experts.gate_up_E2IH));
      }
    });
  }
}

// Results, allocations and bytes on the wire of a kind on one rank's part of a layer.
struct Trace {
  std::vector<at::Tensor> results;
  std::vector<int64_t> allocations;
  int64_t wire_bytes = 0;
};

Trace trace_of(const MoeLayer& layer, comm::Communicator& group, DispatchKind kind) {
  const KindCase one{"", kind_options(kind), {}};
  auto part = part_for(layer, group, at::kCPU, one);
  Counters counters;
  auto& ledger = memory::current_ledger();
  const int64_t wire = group.wire_bytes();
  ledger.start_timeline();
  run_kind(context_of(part, counters), group, part, one);
  Trace trace{{part.y_NH, part.dx_NH, part.grads.dweights_Nk, part.grads.experts.gate_up_E2IH,
               part.grads.experts.down_EHI},
              {},
              group.wire_bytes() - wire};
  for (const auto& event : ledger.stop_timeline().events) trace.allocations.push_back(event.bytes);
  return trace;
}

void expect_same(const Trace& a, const Trace& b) {
  EXPECT_EQ(a.allocations, b.allocations);
  EXPECT_EQ(a.wire_bytes, b.wire_bytes);
  for (size_t i = 0; i < a.results.size(); ++i) EXPECT_TRUE(at::equal(a.results[i], b.results[i]));
}

// Few tokens are one chunk: the same steps as llep, and on one rank, where nothing moves, as ep.
TEST(DispatchKinds, OneChunkIsLlepAndOnOneRankEp) {
  for (const int degree : {1, 3}) {
    const auto layer = make_layer(std::vector<int64_t>(degree, 40), Routes::kPowerLaw, at::kFloat);
    comm::run_ranks(degree, [&](int rank, const auto& store) {
      const auto group = comm::make_world(rank, degree, store);
      const auto pipelined = trace_of(layer, *group, DispatchKind::kPipelinedLlep);
      expect_same(pipelined, trace_of(layer, *group, DispatchKind::kLlep));
      if (degree == 1) expect_same(pipelined, trace_of(layer, *group, DispatchKind::kEp));
    });
  }
}

TEST(DispatchKinds, KnowEveryRanksCounts) {
  for (const int degree : kDegrees)
    comm::run_ranks(degree, [&](int rank, const auto& store) {
      const auto group = comm::make_world(rank, degree, store);
      std::vector<int64_t> mine(kExperts);
      for (int64_t e = 0; e < kExperts; ++e) mine[e] = rank * 100 + e;
      const auto counts = exchange_route_counts(*group, mine);
      EXPECT_EQ(counts.num_experts, kExperts);
      for (int64_t source = 0; source < degree; ++source)
        for (int64_t e = 0; e < kExperts; ++e) EXPECT_EQ(counts.from_to(source, e), source * 100 + e);
      EXPECT_EQ(group->wire_bytes(), (degree - 1) * kExperts * 8);
    });
}

}  // namespace
}  // namespace steppe::ops
