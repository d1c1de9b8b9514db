// What pipelined_llep sends, by formula, and that it allocates once per pass.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "steppe/memory/scope.h"
#include "steppe/ops/moe_dispatch/kinds_test.h"
#include "steppe/ops/moe_dispatch/route_schedule.h"

namespace steppe::ops {
namespace {

KindCase in_chunks(int64_t chunks) {
  return {fmt::format("{} chunks", chunks), kind_options(DispatchKind::kPipelinedLlep), {chunks}};
}

// Of both passes, by the plan.
int64_t bytes_sent(const RankPart& part, const DispatchPlan& plan, int64_t rank) {
  const int64_t item = part.x_NH.element_size(), row = kHidden * item, packed = (row + 15) / 16 * 16 + 16;
  int64_t bytes = 0;
  for (int64_t chunk = 0; chunk < plan.num_chunks(); ++chunk) {
    const auto schedule = schedule_routes(part.routing.counts, plan, chunk, rank);
    const int64_t away = schedule.num_sent - schedule.send_rows[rank];
    const int64_t from_others = schedule.num_received - schedule.receive_rows[rank];
    bytes += away * (2 * packed + row) + from_others * 2 * packed;  // x twice and dy; y and dx
  }
  const int64_t local = plan.num_experts / plan.degree, expert = 3 * kHidden * kIntermediate;
  for (int64_t helper = 0; helper < plan.degree; ++helper)
    for (const int64_t e : plan.helpers.experts_of(helper)) {
      if (e / local == rank) bytes += 2 * expert * item;  // weights, once a pass
      if (helper == rank) bytes += expert * 4;            // the gradient, home
    }
  return bytes;
}

TEST(PipelinedWire, RowsTravelOnceAndForeignWeightsOncePerPass) {
  int64_t most_helpers = 0;
  for (const int degree : {2, 3, 4})
    for (const auto routes : {Routes::kPowerLaw, Routes::kAllToOne, Routes::kOneRankOnly})
      for (const auto dtype : {at::kFloat, at::kBFloat16}) {
        const auto layer = make_layer(uneven_tokens(degree), routes, dtype);
        for (const int64_t chunks : {2, 5}) {
          const auto kind = in_chunks(chunks);
          comm::run_ranks(degree, [&](int rank, const auto& store) {
            const auto group = comm::make_world(rank, degree, store);
            auto part = part_for(layer, *group, at::kCPU, kind);
            const auto plan = plan_dispatch(part.routing.counts, degree, kTopK, plan_options(kind.options));
            Counters counters;
            const int64_t before = group->wire_bytes();
            run_kind(context_of(part, counters), *group, part, kind);
            EXPECT_EQ(group->wire_bytes() - before, bytes_sent(part, plan, rank)) << fmt::format(
                "rank {} of {}, routes {}, {}", rank, degree, static_cast<int>(routes), kind.name);
            if (rank == 0) most_helpers = std::max(most_helpers, plan.helpers.most());
          });
        }
      }
  EXPECT_GT(most_helpers, 1);
}

// More chunks allocate nothing more.
TEST(PipelinedWire, BuffersServeAllChunks) {
  for (const int degree : {1, 3}) {
    const auto layer = make_layer(std::vector<int64_t>(degree, 40), Routes::kRandom, at::kFloat);
    comm::run_ranks(degree, [&](int rank, const auto& store) {
      const auto group = comm::make_world(rank, degree, store);
      const auto allocations = [&](int64_t chunks) {
        auto kind = in_chunks(chunks);
        kind.options.plan.least_loaded.max_helpers = 0;  // whose experts are buffers, too
        auto part = part_for(layer, *group, at::kCPU, kind);
        Counters counters;
        const auto& ledger = memory::current_ledger();
        const int64_t before = ledger.num_allocations();
        run_kind(context_of(part, counters), *group, part, kind);
        return ledger.num_allocations() - before;
      };
      const int64_t few = allocations(2), many = allocations(8);
      EXPECT_GT(few, 0);
      EXPECT_EQ(many, few);
    });
  }
}

}  // namespace
}  // namespace steppe::ops
