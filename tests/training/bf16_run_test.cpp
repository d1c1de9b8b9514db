// Training in bf16 with fp32 masters follows training in fp32.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/training/small_run.h"

namespace steppe::testing {
namespace {

constexpr int64_t kSteps = 10;

std::vector<double> losses(const layout::LayoutConfig& layout, at::ScalarType dtype) {
  auto run = small_run(2, layout);
  run.dtype = dtype;
  run.micro_batch_size = run.global_batch_size;
  return train_losses(run, kSteps, [] { return std::make_unique<ops::TopKRouting>(); });
}

TEST(Bf16Run, FollowsFp32OnOneAndTwoRanks) {
  const auto expected = losses({1, 1, 1, 1}, at::kFloat);
  for (const layout::LayoutConfig& layout : {layout::LayoutConfig{1, 1, 1, 1}, {2, 2, 2, 2}}) {
    const auto got = losses(layout, at::kBFloat16);
    EXPECT_GT(got.front() - got.back(), 0.1);
    double worst = 0;
    for (int64_t step = 0; step < kSteps; ++step) {
      // A handful of roundings of logits of the loss's own size; the mean over tokens does not add to it.
      worst = std::max(worst, std::abs(got[step] - expected[step]) / (4 * 0x1p-8 * expected[step]));
    }
    EXPECT_LE(worst, 1) << layout.world_size << " ranks";
    EXPECT_GT(worst, 1e-4) << "bf16 is no fp32";
  }
}

}  // namespace
}  // namespace steppe::testing
