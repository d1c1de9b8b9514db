#include "steppe/train/metrics/moe_health.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "steppe/base/error.h"

namespace steppe::metrics {
namespace {

TEST(MoeHealth, AnEvenLoadIsHealthy) {
  const MoeHealth health = moe_health({{7, 7, 7, 7}, {1, 1, 1, 1}});
  EXPECT_DOUBLE_EQ(health.load_max_over_mean, 1.0);
  EXPECT_DOUBLE_EQ(health.load_cv, 0.0);
  EXPECT_DOUBLE_EQ(health.dead_expert_frac, 0.0);
  EXPECT_NEAR(health.router_entropy, 1.0, 1e-15);
}

TEST(MoeHealth, OneExpertWithEverything) {
  const MoeHealth health = moe_health({{0, 0, 12, 0}});
  EXPECT_DOUBLE_EQ(health.load_max_over_mean, 4.0);
  // Deviations (-3, -3, 9, -3) about a mean of 3: the root of 108/4 is 3 times the root of 3.
  EXPECT_DOUBLE_EQ(health.load_cv, std::sqrt(3.0));
  EXPECT_DOUBLE_EQ(health.dead_expert_frac, 0.75);
  EXPECT_DOUBLE_EQ(health.router_entropy, 0.0);
}

TEST(MoeHealth, TheWorstLayerMeansAndCountsOverLayers) {
  const MoeHealth worse = moe_health({{3, 1}});
  const MoeHealth better = moe_health({{2, 2, 0, 2}});
  const MoeHealth both = moe_health({{3, 1}, {2, 2, 0, 2}});
  EXPECT_DOUBLE_EQ(worse.load_max_over_mean, 1.5);
  EXPECT_DOUBLE_EQ(both.load_max_over_mean, 1.5);
  EXPECT_DOUBLE_EQ(both.load_cv, (worse.load_cv + better.load_cv) / 2);
  EXPECT_DOUBLE_EQ(both.router_entropy, (worse.router_entropy + better.router_entropy) / 2);
  EXPECT_DOUBLE_EQ(both.dead_expert_frac, 1.0 / 6.0);
  // Entropy of (3/4, 1/4) in bits, and of three equal parts out of four experts.
  EXPECT_NEAR(worse.router_entropy, 2.0 - 0.75 * std::log2(3.0), 1e-15);
  EXPECT_NEAR(better.router_entropy, std::log2(3.0) / 2, 1e-15);
}

TEST(MoeHealth, LayersWithoutTokensSayNothing) {
  const MoeHealth alone = moe_health({{3, 1}});
  const MoeHealth beside = moe_health({{0, 0}, {3, 1}});
  EXPECT_EQ(alone.load_cv, beside.load_cv);
  EXPECT_EQ(alone.dead_expert_frac, beside.dead_expert_frac);
  const MoeHealth none = moe_health({{0, 0}});
  EXPECT_EQ(none.load_max_over_mean, 0.0);
  EXPECT_EQ(none.dead_expert_frac, 0.0);
  EXPECT_EQ(moe_health({}).router_entropy, 0.0);
}

TEST(MoeHealth, ASingleExpertIsEven) {
  const MoeHealth health = moe_health({{9}});
  EXPECT_EQ(health.load_max_over_mean, 1.0);
  EXPECT_EQ(health.router_entropy, 1.0);
}

TEST(MoeHealth, RefusesWhatIsNoLoad) {
  EXPECT_THROW(moe_health({{1, 2}, {}}), ValueError);
  try {
    moe_health({{1, 2}, {3, -4}});
    FAIL() << "a negative count was taken";
  } catch (const ValueError& error) {
    EXPECT_STREQ(error.what(), "[moe_health] load[1][1] must be a count, got -4");
  }
}

TEST(BiasMaxAbs, LooksAtMagnitudesAndShowsNan) {
  EXPECT_EQ(bias_max_abs({}), 0.0);
  EXPECT_EQ(bias_max_abs({{0.25f, -0.5f}, {0.125f}}), 0.5);
  EXPECT_TRUE(std::isnan(bias_max_abs({{0.25f, std::numeric_limits<float>::quiet_NaN(), 1.0f}})));
}

}  // namespace
}  // namespace steppe::metrics
