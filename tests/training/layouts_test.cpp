// The loss does not depend on how the work is laid out.
#include <gtest/gtest.h>

#include "tests/training/follows_reference.h"
#include "tests/training/small_run.h"

namespace steppe::testing {
namespace {

constexpr int64_t kSteps = 20;

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
        expect_follows(small_run(kv_heads, layout), kSteps, describe(layout));
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
      expect_follows(run, kSteps, fmt::format("{} micro-batch of {}", describe(layout), size));
    }
  }
}

TEST(Recomputation, DoesNotChangeTheLoss) {
  for (const layout::LayoutConfig& layout : {layout::LayoutConfig{1, 1, 1, 1}, {4, 2, 4, 2}}) {
    auto run = small_run(2, layout);
    run.step.recompute = train::Recompute::kNone;
    expect_follows(run, kSteps, describe(layout));
  }
}

TEST(FullLogits, GiveTheSameLoss) {
  for (const layout::LayoutConfig& layout : {layout::LayoutConfig{1, 1, 1, 1}, {4, 1, 1, 4}, {3, 1, 1, 3}}) {
    auto run = small_run(layout.world_size == 3 ? 1 : 2, layout);
    run.step.loss = ops::VocabLossKind::kFull;
    expect_follows(run, kSteps, describe(layout));
  }
}

}  // namespace
}  // namespace steppe::testing
