// A run does not depend on how tokens travel to their experts; and its dry run predicts it.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "steppe/memory/scope.h"
#include "tests/training/follows_reference.h"
#include "tests/training/small_run.h"

namespace steppe::testing {
namespace {

constexpr int64_t kSteps = 50;

SmallRun run_of(const layout::LayoutConfig& layout, ops::DispatchKind kind) {
  auto run = small_run(layout.world_size == 3 ? 1 : 2, layout);
  run.step.dispatch.kind = kind;
  run.step.dispatch.token_budget = 12;
  run.step.dispatch.max_chunks = 4;
  run.step.dispatch.plan.least_loaded.min_rows = 4;
  return run;
}

TEST(DispatchKinds, PipelinedLlepFollowsEpForFiftySteps) {
  for (const layout::LayoutConfig& layout :
       {layout::LayoutConfig{1, 1, 1, 1}, {2, 1, 2, 2}, {3, 1, 3, 1}, {4, 2, 4, 2}, {4, 1, 2, 1}})
    expect_follows(run_of(layout, ops::DispatchKind::kPipelinedLlep), kSteps, describe(layout));
}

TEST(DispatchKinds, LlepFollowsEpForFiftySteps) {
  for (const layout::LayoutConfig& layout : {layout::LayoutConfig{2, 1, 2, 2}, {4, 2, 4, 2}})
    expect_follows(run_of(layout, ops::DispatchKind::kLlep), kSteps, describe(layout));
}

TEST(DispatchKinds, FollowEpWithRunsOfTokensAndEverythingElseKept) {
  auto run = run_of({2, 1, 2, 1}, ops::DispatchKind::kPipelinedLlep);
  run.step.dispatch.membership = ops::Membership::kContiguous;
  run.step.recompute = train::Recompute::kNone;
  expect_follows(run, kSteps, "contiguous");
  run.step.dispatch.kind = ops::DispatchKind::kLlep;
  expect_follows(run, kSteps, "llep, kept");
}

// On one rank the default is never larger than ep, chunked or not, and takes the same steps with one chunk.
TEST(DispatchKinds, OnOneRankChunksOnlySave) {
  const auto peak_of = [](ops::DispatchKind kind, int64_t token_budget) {
    auto run = run_of({1, 1, 1, 1}, kind);
    run.step.dispatch.token_budget = token_budget;
    int64_t peak = 0, flops = 0;
    on_all_ranks(
        run, [] { return std::make_unique<ops::TopKRouting>(); },
        [&](Rank& rank) {
          const auto batch = small_batch(run, 0, 0);
          memory::current_ledger().reset_peak();
          rank.step.train(batch, run.lr, 1);
          const auto own = memory::current_ledger().peak_by_own_category();
          peak = own[static_cast<size_t>(memory::Category::kDispatch)] +
                 own[static_cast<size_t>(memory::Category::kExpert)];
          flops = rank.counters.flops[FlopKind::kExpert];
        });
    return std::pair(peak, flops);
  };
  const auto ep = peak_of(ops::DispatchKind::kEp, 4096),
             whole = peak_of(ops::DispatchKind::kPipelinedLlep, 4096),
             chunked = peak_of(ops::DispatchKind::kPipelinedLlep, 12);
  EXPECT_EQ(whole, ep);
  EXPECT_LT(2 * chunked.first, ep.first);
  EXPECT_EQ(chunked.second, ep.second);
}

// The router itself counts by chunk.
TEST(DispatchKinds, TheRouterChoosesAlike) {
  const auto losses_of = [](ops::DispatchKind kind) {
    return train_losses(run_of({2, 1, 2, 1}, kind), 5, [] { return std::make_unique<ops::TopKRouting>(); });
  };
  const auto ep = losses_of(ops::DispatchKind::kEp), pipelined = losses_of(ops::DispatchKind::kPipelinedLlep);
  for (size_t i = 0; i < ep.size(); ++i) EXPECT_NEAR(pipelined[i], ep[i], 1e-6);
}

}  // namespace
}  // namespace steppe::testing
