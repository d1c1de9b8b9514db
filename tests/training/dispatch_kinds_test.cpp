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
