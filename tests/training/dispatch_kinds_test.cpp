// A run does not depend on how tokens travel to their experts; and its dry run predicts it.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "steppe/memory/scope.h"
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

// `ep` on one rank, the router choosing: what every kind and layout must follow.
struct Reference {
  RoutingRecord record;
  std::vector<double> losses;
};
Reference& reference(int64_t num_kv_heads) {
  static std::map<int64_t, Reference> references;
  auto& reference = references[num_kv_heads];
  if (reference.losses.empty()) {
    reference.losses = train_losses(small_run(num_kv_heads, {}), kSteps,
                                    [&] { return std::make_unique<RecordedTopK>(reference.record); });
    EXPECT_GT(reference.losses.front() - reference.losses.back(), 0.3);
  }
  return reference;
}

void expect_follows(const SmallRun& run, const std::string& what) {
  auto& expected = reference(run.model.num_key_value_heads);
  const auto losses = train_losses(
      run, kSteps, [&] { return std::make_unique<ops::GivenRouting>(expected.record.replay(run.model)); });
  double worst = 0;
  for (int64_t i = 0; i < kSteps; ++i) worst = std::max(worst, std::abs(losses[i] - expected.losses[i]));
  EXPECT_LE(worst, 1e-6) << what;
}

std::string describe(const layout::LayoutConfig& layout) {
  return fmt::format("W={} D={} E_p={} P={}", layout.world_size, layout.ulysses_degree, layout.expert_degree,
                     layout.vocab_degree);
}

TEST(DispatchKinds, PipelinedLlepFollowsEpForFiftySteps) {
  for (const layout::LayoutConfig& layout :
       {layout::LayoutConfig{1, 1, 1, 1}, {2, 1, 2, 2}, {3, 1, 3, 1}, {4, 2, 4, 2}, {4, 1, 2, 1}})
    expect_follows(run_of(layout, ops::DispatchKind::kPipelinedLlep), describe(layout));
}

TEST(DispatchKinds, LlepFollowsEpForFiftySteps) {
  for (const layout::LayoutConfig& layout : {layout::LayoutConfig{2, 1, 2, 2}, {4, 2, 4, 2}})
    expect_follows(run_of(layout, ops::DispatchKind::kLlep), describe(layout));
}

TEST(DispatchKinds, FollowEpWithRunsOfTokensAndEverythingElseKept) {
  auto run = run_of({2, 1, 2, 1}, ops::DispatchKind::kPipelinedLlep);
  run.step.dispatch.membership = ops::Membership::kContiguous;
  run.step.recompute = train::Recompute::kNone;
  expect_follows(run, "contiguous");
  run.step.dispatch.kind = ops::DispatchKind::kLlep;
  expect_follows(run, "llep, kept");
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
