#include <gtest/gtest.h>

#include <cmath>

#include "steppe/optim/adamw.h"
#include "steppe/optim/schedule.h"

namespace steppe::optim {
namespace {

TEST(Schedule, WarmsUpToThePeakAndReachesTheFloor) {
  for (const auto kind : {ScheduleKind::kLinear, ScheduleKind::kCosine, ScheduleKind::kWarmupStableDecay}) {
    const ScheduleConfig config{
        .kind = kind, .lr = 2.0, .min_lr_ratio = 0.1, .total_steps = 100, .warmup_steps = 9};
    EXPECT_DOUBLE_EQ(learning_rate(config, 0), 0.2);
    EXPECT_DOUBLE_EQ(learning_rate(config, 9), 2.0);
    EXPECT_NEAR(learning_rate(config, 100), 0.2, 1e-12);
    EXPECT_NEAR(learning_rate(config, 1000), 0.2, 1e-12);
    for (int64_t step = 9; step < 100; ++step)
      EXPECT_GE(learning_rate(config, step), learning_rate(config, step + 1));
  }
}

TEST(Schedule, ShapesDiffer) {
  ScheduleConfig config{.kind = ScheduleKind::kConstant, .lr = 1.0, .total_steps = 100};
  EXPECT_DOUBLE_EQ(learning_rate(config, 99), 1.0);
  config.kind = ScheduleKind::kLinear;
  EXPECT_NEAR(learning_rate(config, 25), 0.75, 1e-12);
  config.kind = ScheduleKind::kCosine;
  EXPECT_NEAR(learning_rate(config, 25), 0.5 * (1 + std::cos(std::acos(-1.0) / 4)), 1e-12);
  config.kind = ScheduleKind::kWarmupStableDecay;
  config.decay_steps = 20;
  EXPECT_DOUBLE_EQ(learning_rate(config, 79), 1.0);
  EXPECT_NEAR(learning_rate(config, 90), 0.5, 1e-12);
}

TEST(Clip, ScalesOnlyAboveTheLimit) {
  EXPECT_EQ(clip_scale(0.5, 1.0), 1.0);
  EXPECT_EQ(clip_scale(5.0, 0.0), 1.0);
  EXPECT_NEAR(clip_scale(4.0, 1.0) * 4.0, 1.0, 1e-6);
}

}  // namespace
}  // namespace steppe::optim
