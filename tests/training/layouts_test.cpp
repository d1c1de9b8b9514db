// The loss does not depend on how the work is laid out.
#include <gtest/gtest.h>

#include "tests/training/small_run.h"

namespace steppe::testing {
namespace {

constexpr int64_t kSteps = 20;

struct Reference {
  RoutingRecord record;
  std::vector<double> losses;
};

// One rank, the router choosing; what every layout must reproduce.
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

void expect_same_losses(const SmallRun& run, const std::string& what) {
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

std::vector<int> divisors(int world_size) {
  std::vector<int> result;
  for (int d = 1; d <= world_size; ++d) {
    if (world_size % d == 0) result.push_back(d);
  }
  return result;
}

class EveryLayout : public ::testing::TestWithParam<int> {};

TEST_P(EveryLayout, GivesTheLossesOfOneRank) {
  const int world_size = GetParam();
  // Two key-value heads are replicated over D = 4; one over D = 3.
  const int64_t kv_heads = world_size == 3 ? 1 : 2;
  for (const int d : divisors(world_size)) {
    for (const int expert : divisors(world_size)) {
      for (const int vocab : divisors(world_size)) {
        const layout::LayoutConfig layout{world_size, d, expert, vocab};
        expect_same_losses(small_run(kv_heads, layout), describe(layout));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(WorldSizes, EveryLayout, ::testing::Values(1, 2, 3, 4));

TEST(MicroBatches, DoNotChangeTheLoss) {
  for (const layout::LayoutConfig& layout : {layout::LayoutConfig{1, 1, 1, 1}, {2, 1, 2, 2}, {4, 2, 4, 2}}) {
    for (const int64_t size : {1, 2, 4}) {
      auto run = small_run(2, layout);
      run.micro_batch_size = size;
      expect_same_losses(run, fmt::format("{} micro-batch of {}", describe(layout), size));
    }
  }
}

TEST(Recomputation, DoesNotChangeTheLoss) {
  for (const layout::LayoutConfig& layout : {layout::LayoutConfig{1, 1, 1, 1}, {4, 2, 4, 2}}) {
    auto run = small_run(2, layout);
    run.step.recompute = train::Recompute::kNone;
    expect_same_losses(run, describe(layout));
  }
}

TEST(FullLogits, GiveTheSameLoss) {
  for (const layout::LayoutConfig& layout : {layout::LayoutConfig{1, 1, 1, 1}, {4, 1, 1, 4}, {3, 1, 1, 3}}) {
    auto run = small_run(layout.world_size == 3 ? 1 : 2, layout);
    run.step.loss = ops::VocabLossKind::kFull;
    expect_same_losses(run, describe(layout));
  }
}

}  // namespace
}  // namespace steppe::testing
