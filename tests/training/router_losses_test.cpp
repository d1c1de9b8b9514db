// The router's own losses in whole steps: the same on every layout, and they do what they are for.
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <vector>

#include "tests/training/follows_reference.h"
#include "tests/training/small_run.h"

namespace steppe::testing {
namespace {

constexpr double kBalance = 0.02, kZ = 1e-3;

// One micro-batch a step on every layout: expert loads are those of a micro-batch.
SmallRun run_of(const layout::LayoutConfig& layout) {
  auto run = small_run(2, layout);
  run.micro_batch_size = run.global_batch_size * layout.ulysses_degree / layout.world_size;
  run.step.balance_coeff = kBalance;
  run.step.router_z_coeff = kZ;
  return run;
}

using MakeRouting = std::function<std::unique_ptr<ops::RoutingSource>()>;

std::vector<train::StepResult> results_of(const SmallRun& run, int64_t steps, const MakeRouting& routing) {
  std::vector<train::StepResult> results;
  on_all_ranks(run, routing, [&](Rank& rank) {
    for (int64_t step = 0; step < steps; ++step) {
      const auto result = rank.step.train(small_batch(run, step, rank.group()), run.lr, step + 1);
      if (rank.layout.rank() == 0) results.push_back(result);
    }
  });
  return results;
}

std::unique_ptr<ops::RoutingSource> top_k() {
  return std::make_unique<ops::TopKRouting>();
}

TEST(RouterLosses, EveryLayoutAgrees) {
  constexpr int64_t kSteps = 12;
  RoutingRecord record;
  const auto expected =
      results_of(run_of({}), kSteps, [&] { return std::make_unique<RecordedTopK>(record); });
  for (const layout::LayoutConfig& layout :
       {layout::LayoutConfig{2, 1, 2, 2}, {2, 2, 1, 1}, {4, 2, 2, 1}, {4, 1, 1, 4}}) {
    SCOPED_TRACE(describe(layout));
    const auto run = run_of(layout);
    const auto got = results_of(
        run, kSteps, [&] { return std::make_unique<ops::GivenRouting>(record.replay(run.model)); });
    ASSERT_EQ(got.size(), expected.size());
    for (int64_t i = 0; i < kSteps; ++i) {
      EXPECT_NEAR(got[i].loss, expected[i].loss, 1e-6);
      EXPECT_NEAR(got[i].balance_loss, expected[i].balance_loss, 1e-7);
      EXPECT_NEAR(got[i].router_z_loss, expected[i].router_z_loss, 1e-7);
      EXPECT_NEAR(got[i].grad_norm, expected[i].grad_norm, 1e-5 * expected[i].grad_norm);
    }
  }
}

TEST(RouterLosses, KeptAndRecomputedScoresGiveTheSameBits) {
  auto run = run_of({});
  const auto recomputed = results_of(run, 3, top_k);
  run.step.recompute = train::Recompute::kNone;
  const auto kept = results_of(run, 3, top_k);
  for (size_t i = 0; i < kept.size(); ++i) {
    EXPECT_EQ(kept[i].loss, recomputed[i].loss);
    EXPECT_EQ(kept[i].balance_loss, recomputed[i].balance_loss);
    EXPECT_EQ(kept[i].router_z_loss, recomputed[i].router_z_loss);
  }
}

// How far from even the routers are, mean over layers: E·Σ_e f_e·P_e − 1.
double imbalance(const train::StepResult& result, const SmallRun& run) {
  const int64_t moe_layers = run.model.num_hidden_layers - run.model.first_k_dense_replace;
  return result.balance_loss / (run.step.balance_coeff * static_cast<double>(moe_layers)) - 1;
}

// A coefficient too small to matter measures what a large one changes.
TEST(RouterLosses, PullTheRouterWhereTheyShould) {
  constexpr int64_t kSteps = 40;
  auto run = run_of({});
  run.step.router_z_coeff = 0;
  run.step.balance_coeff = 1e-12;
  const auto plain = results_of(run, kSteps, top_k);
  EXPECT_EQ(plain.back().router_z_loss, 0);
  const double without = imbalance(plain.back(), run);
  EXPECT_GT(without, 0.01);
  run.step.balance_coeff = 0.5;
  EXPECT_LT(imbalance(results_of(run, kSteps, top_k).back(), run), 0.5 * without);

  run.step.balance_coeff = 0;
  run.step.router_z_coeff = 0.1;
  const auto small = results_of(run, kSteps, top_k);
  EXPECT_EQ(small.back().balance_loss, 0);
  EXPECT_LT(small.back().router_z_loss, 0.9 * small.front().router_z_loss);
}

}  // namespace
}  // namespace steppe::testing
