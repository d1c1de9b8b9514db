// What pipelined_llep holds: the header's claims to the byte, the bound, the dry run, and sizes of real
// models.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "steppe/comm/shape_only_communicator.h"
#include "steppe/memory/scope.h"
#include "steppe/ops/moe_dispatch/chunk_sizes.h"
#include "steppe/ops/moe_dispatch/kinds_test.h"
#include "steppe/ops/moe_dispatch/plan_cases_test.h"

namespace steppe::ops {
namespace {

using memory::BytesByCategory;
using memory::Category;

int64_t of(const BytesByCategory& bytes, Category category) {
  return bytes[static_cast<size_t>(category)];
}

// Own peaks of the categories while `run` runs, over what was there before; and what is left.
struct Watched {
  int64_t dispatch = 0, expert = 0, peak = 0, left = 0;
};
template <class Run>
Watched watch(Run run) {
  auto& ledger = memory::current_ledger();
  ledger.reset_peak();
  const int64_t before = ledger.live_bytes();
  run();
  const auto own = ledger.peak_by_own_category();
  return {of(own, Category::kDispatch), of(own, Category::kExpert), ledger.peak().bytes,
          ledger.live_bytes() - before};
}

// The header's claims.
Watched claim(const DispatchPlan& plan, int rank, int64_t own_chunk_tokens, int64_t hidden,
              int64_t intermediate, int64_t item, bool backward) {
  const int64_t slot = slot_rows(plan, rank), routes = plan.top_k * own_chunk_tokens,
                tile = tile_rows_of(plan, 0);
  Watched claim;
  if (plan.degree == 1) {  // chunks in turn
    claim.dispatch = routes * ((backward ? 2 : 1) * hidden * item + (backward ? 24 : 20));
    claim.expert = std::min(tile, routes) * 3 * intermediate * item;
    return claim;
  }
  const int64_t row = hidden * item, packed = (row + 15) / 16 * 16 + 16;
  claim.dispatch = slot * 2 * packed + routes * 44;
  if (backward) {
    const int64_t half = std::min((row / 2 + 15) / 16 * 16, row);
    claim.dispatch += 2 * std::max(slot * row, routes * packed) + routes * half;
  } else {
    claim.dispatch += 2 * routes * packed;
  }
  claim.expert = tile * ((hidden + 3 * intermediate) * item + 4);
  if (backward) claim.expert += tile * (hidden * item + 4);
  return claim;
}

KindCase chunked(int64_t chunks) {
  return {fmt::format("{} chunks", chunks), kind_options(DispatchKind::kPipelinedLlep), {chunks}};
}

struct Passes {
  Watched forward, backward;
};
Passes run_watched(const OpContext& context, comm::Communicator& group, RankPart& part,
                   const DispatchOptions& options) {
  const DispatchLayer layer{context, group, part.routing, part.weights, options};
  Passes passes;
  passes.forward = watch([&] { dispatch_forward(layer, part.y_NH, part.x_NH, nullptr); });
  part.y_NH.reset();  // no operand of the backward
  passes.backward = watch([&] { dispatch_backward(layer, part.grads, part.dy_NH, part.x_NH, nullptr); });
  return passes;
}

TEST(PipelinedBytes, AreWhatTheHeaderSays) {
  for (const int degree : kDegrees)
    comm::run_ranks(degree, [&](int rank, const auto& store) {
      const auto group = comm::make_world(rank, degree, store);
      for (const auto routes : kAllRoutes)
        for (const int64_t chunks : {2, 5}) {
          SCOPED_TRACE(fmt::format("rank {} of {}, routes {}, {} chunks", rank, degree,
                                   static_cast<int>(routes), chunks));
          const auto layer = make_layer(uneven_tokens(degree), routes, at::kFloat);
          const auto kind = chunked(chunks);
          auto part = part_for(layer, *group, at::kCPU, kind);
          Counters counters;
          const auto context = context_of(part, counters);
          const auto plan = plan_dispatch(part.routing.counts, degree, kTopK, kind.options.plan);
          const int64_t tokens = kind.split.tokens(0, part.x_NH.size(0));
          const auto passes = run_watched(context, *group, part, kind.options);
          for (const bool backward : {false, true}) {
            const auto& got = backward ? passes.backward : passes.forward;
            const auto want = claim(plan, rank, tokens, kHidden, kIntermediate, 4, backward);
            EXPECT_EQ(got.dispatch, want.dispatch);
            EXPECT_EQ(got.expert, want.expert);
            EXPECT_EQ(got.left, 0) << "nothing sized by the routing is kept";
          }
          EXPECT_LE(slot_rows(plan, rank), degree * plan.chunk_rows());
        }
    });
}

TEST(PipelinedBytes, ADryRunPredictsEveryAllocationAndByteAndOperation) {
  for (const int degree : {1, 3})
    comm::run_ranks(degree, [&](int rank, const auto& store) {
      const auto group = comm::make_world(rank, degree, store);
      for (const auto& kind : all_kinds()) {
        SCOPED_TRACE(fmt::format("rank {} of {}, {}", rank, degree, kind.name));
        const auto layer = make_layer(uneven_tokens(degree), Routes::kPowerLaw, at::kFloat);
        auto real = part_for(layer, *group, at::kCPU, kind);
        comm::ShapeOnlyCommunicator shapes("expert", rank, degree);
        auto dry = part_for(layer, shapes, at::kMeta, kind);
        dry.routing.counts = real.routing.counts;
        auto& ledger = memory::current_ledger();
        const auto trace = [&](comm::Communicator& over, RankPart& part, Counters& counters) {
          const int64_t live = ledger.live_bytes();
          ledger.start_timeline();
          run_kind(context_of(part, counters), over, part, kind);
          auto events = ledger.stop_timeline().events;
          for (auto& event : events) event.live_bytes -= live;
          return events;
        };
        Counters real_counters, dry_counters;
        const int64_t wire = group->wire_bytes(), dry_wire = shapes.wire_bytes();
        const auto real_events = trace(*group, real, real_counters),
                   dry_events = trace(shapes, dry, dry_counters);
        EXPECT_GT(real_events.size(), 10u);
        EXPECT_TRUE(real_events == dry_events);
        EXPECT_TRUE(real_counters == dry_counters);
        EXPECT_EQ(group->wire_bytes() - wire, shapes.wire_bytes() - dry_wire);
      }
    });
}

// gate, up, down; then gate and up again, and six products of gradients.
TEST(PipelinedBytes, ElevenUnitsOfExpertWork) {
  const auto layer = make_layer({20}, Routes::kPowerLaw, at::kFloat);
  comm::LocalCommunicator group("expert", at::kCPU);
  auto part = part_for(layer, group, at::kCPU, chunked(3));
  Counters counters;
  run_kind(context_of(part, counters), group, part, chunked(3));
  EXPECT_EQ(counters.flops[FlopKind::kExpert], 11 * 2 * layer.ids_Nk.numel() * kHidden * kIntermediate);
}

// gate, up, down; then the six products of gradients. Gate and up of every row stay between the passes.
TEST(PipelinedBytes, NineUnitsOfExpertWorkWhereGateAndUpAreKept) {
  for (const int degree : {1, 3})
    comm::run_ranks(degree, [&](int rank, const auto& store) {
      const auto group = comm::make_world(rank, degree, store);
      const auto all_ranks = make_layer(uneven_tokens(degree), Routes::kPowerLaw, at::kFloat);
      const auto kind = chunked(3);
      auto part = part_for(all_ranks, *group, at::kCPU, kind);
      Counters counters;
      const auto context = context_of(part, counters);
      const DispatchLayer layer{context, *group, part.routing, part.weights, kind.options};
      const auto plan = plan_dispatch(part.routing.counts, degree, kTopK, kind.options.plan);
      int64_t received = 0;
      for (const auto& chunk : plan.chunks) received += chunk.rows_of_rank[rank];
      auto& ledger = memory::current_ledger();
      const auto before = ledger.live_by_category();
      DispatchSaved saved;
      dispatch_forward(layer, part.y_NH, part.x_NH, &saved);
      auto kept = ledger.live_by_category();
      for (size_t c = 0; c < kept.size(); ++c) kept[c] -= before[c];
      BytesByCategory want{};
      want[static_cast<size_t>(Category::kSaved)] = received * 2 * kIntermediate * 4;
      EXPECT_EQ(kept, want);
      dispatch_backward(layer, part.grads, part.dy_NH, part.x_NH, &saved);
      EXPECT_EQ(ledger.live_by_category(), before);
      EXPECT_EQ(counters.flops[FlopKind::kExpert], 9 * 2 * received * kHidden * kIntermediate);
    });
}

// One layer of gpt-oss-120b over 8 ranks, on meta.
struct LargeLayer {
  static constexpr int64_t kWidth = 2880, kNumExperts = 128, kChoices = 4, kRanks = 8;

  // Of every token of every rank, in chunks.
  static RouteCounts counts_of(const char* profile, int64_t tokens, int64_t chunks) {
    return profile_case(RoutingProfile::parse(profile), kNumExperts, kRanks, kChoices, tokens, chunks).counts;
  }

  LargeLayer(const RouteCounts& counts, int64_t tokens, int rank, at::ScalarType gradients = at::kFloat)
      : group("expert", rank, kRanks) {
    const auto empty = [](at::IntArrayRef sizes, at::ScalarType type = at::kBFloat16) {
      return at::empty(sizes, at::TensorOptions().device(at::kMeta).dtype(type));
    };
    const int64_t local = kNumExperts / kRanks;
    part = {empty({tokens, kWidth}),
            empty({tokens, kWidth}),
            empty({tokens, kWidth}),
            empty({tokens, kWidth}),
            {empty({tokens, kChoices}, at::kInt), empty({tokens, kChoices}, at::kFloat), counts},
            {empty({local, 2 * kWidth, kWidth}), empty({local, kWidth, kWidth})},
            {}};
    part.dx_NH = part.x_NH;
    part.grads = {part.dx_NH,
                  empty({tokens, kChoices}, at::kFloat),
                  {empty({local, 2 * kWidth, kWidth}, gradients), empty({local, kWidth, kWidth}, gradients)}};
  }

  Passes run(DispatchKind kind) {
    DispatchOptions options{.kind = kind};
    if (kind != DispatchKind::kPipelinedLlep) {  // the same counts, unchunked
      auto& counts = part.routing.counts;
      RouteCounts whole{counts.num_experts, {}};
      for (int64_t source = 0; source < kRanks; ++source)
        for (int64_t e = 0; e < kNumExperts; ++e) whole.routes.push_back(counts.from_to(source, e));
      counts = whole;
    }
    Counters counters;
    auto passes = run_watched({at::kMeta, at::kBFloat16, &counters}, group, part, options);
    // No operand of the forward.
    passes.forward.peak -= static_cast<int64_t>(part.dy_NH.nbytes());
    return passes;
  }

  comm::ShapeOnlyCommunicator group;
  RankPart part;
};

TEST(PipelinedBytes, NoProfileMovesThePeakOfALargeLayer) {
  Passes balanced;
  for (const char* profile : kProfiles) {
    const auto counts = LargeLayer::counts_of(profile, 65536, 10);
    for (int rank = 0; rank < LargeLayer::kRanks; ++rank) {
      SCOPED_TRACE(fmt::format("{}, rank {}", profile, rank));
      const auto passes = LargeLayer(counts, 65536, rank).run(DispatchKind::kPipelinedLlep);
      if (balanced.forward.dispatch == 0) balanced = passes;
      EXPECT_EQ(passes.forward.dispatch, balanced.forward.dispatch);
      EXPECT_EQ(passes.backward.dispatch, balanced.backward.dispatch);
      EXPECT_EQ(passes.forward.expert, balanced.forward.expert);
      EXPECT_EQ(passes.backward.expert, balanced.backward.expert);
    }
  }
}

double larger_peak(const Passes& passes) {
  return static_cast<double>(std::max(passes.forward.peak, passes.backward.peak));
}

// Weights, gradients, input and output included, dx in x's place. llep holds five routed buffers in its
// backward (x, dy, gate and up, the activation), four in its forward.
TEST(PipelinedBytes, ALargeLayerHoldsASmallPartOfWhatLlepHolds) {
  const auto counts = LargeLayer::counts_of("balanced", 65536, 10);
  const auto pipelined = LargeLayer(counts, 65536, 0).run(DispatchKind::kPipelinedLlep);
  const auto llep = LargeLayer(counts, 65536, 0).run(DispatchKind::kLlep);
  const auto share = [](const Watched& a, const Watched& b) {
    return static_cast<double>(a.dispatch + a.expert) / static_cast<double>(b.dispatch + b.expert);
  };
  EXPECT_LE(share(pipelined.forward, llep.forward), 0.15);
  EXPECT_LE(share(pipelined.backward, llep.backward), 0.15);
  EXPECT_LE(larger_peak(pipelined) / larger_peak(llep), 1 - 0.635);
  EXPECT_LE(static_cast<double>(pipelined.forward.peak) / static_cast<double>(llep.forward.peak), 1 - 0.58);
}

// Foreign experts and their gradients included, at the rank where they are the most.
TEST(PipelinedBytes, SkewedLayersHoldASmallPartToo) {
  struct Case {
    int64_t tokens, chunks;
    at::ScalarType gradients;
    double less;
  };
  for (const auto& [tokens, chunks, gradients, less] :
       {Case{65536, 10, at::kFloat, 0.593}, Case{65536, 10, at::kBFloat16, 0.655},
        Case{65536, 16, at::kFloat, 0.61}, Case{131072, 10, at::kFloat, 0.69}})
    for (const char* profile : {"30/16", "80/16", "95/16"}) {
      SCOPED_TRACE(
          fmt::format("{} tokens, {} chunks, {}, {}", tokens, chunks, profile, c10::toString(gradients)));
      const auto counts = LargeLayer::counts_of(profile, tokens, chunks);
      double pipelined = 0, llep = 0;
      for (int rank = 0; rank < LargeLayer::kRanks; ++rank) {
        const auto peak = [&](DispatchKind kind) {
          return larger_peak(LargeLayer(counts, tokens, rank, gradients).run(kind));
        };
        pipelined = std::max(pipelined, peak(DispatchKind::kPipelinedLlep));
        llep = std::max(llep, peak(DispatchKind::kLlep));
      }
      EXPECT_LE(pipelined / llep, 1 - less);
    }
}

}  // namespace
}  // namespace steppe::ops
