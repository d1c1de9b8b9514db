#include "steppe/train/metrics/planned_memory.h"

#include <gtest/gtest.h>

#include <string>

namespace steppe::metrics {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

PlannedMemory planned() {
  return {.peak_bytes = 10 * kMiB,
          .expected_bytes = 12 * kMiB,
          .guaranteed_bytes = 20 * kMiB,
          .peak_by_category = {{"expert", 4 * kMiB}, {"weights", 6 * kMiB}},
          .routing_profile = "balanced"};
}

// Weights as planned; the rest in `category`.
StepMetrics step_of(int64_t step, int64_t peak_bytes, const std::string& category = "expert") {
  StepMetrics metrics;
  metrics.step = step, metrics.peak_bytes = peak_bytes, metrics.peak_rank = 3;
  metrics.peak_by_category["weights"] = 6 * kMiB;
  metrics.peak_by_category[category] = peak_bytes - 6 * kMiB;
  return metrics;
}

TEST(PeakWatch, SaysOnceThatAStepPassesWhatIsExpected) {
  PeakWatch watch(planned());
  EXPECT_EQ(watch.step(step_of(1, 11 * kMiB)).text, "");
  EXPECT_EQ(watch.step(step_of(2, 12 * kMiB)).text, "");
  const auto remark = watch.step(step_of(3, 14 * kMiB));
  EXPECT_EQ(remark.level, LogLevel::kInfo);
  EXPECT_EQ(remark.text,
            "step 3: the peak of rank 3, 14MiB, passes the 12MiB that the plan expects of balanced routing, "
            "and keeps within the 20MiB that it guarantees: expert holds 8MiB, planned 4MiB");
  EXPECT_EQ(watch.step(step_of(4, 15 * kMiB)).text, "");
}

TEST(PeakWatch, WarnsOnceThatAStepPassesTheGuarantee) {
  PeakWatch watch(planned());
  EXPECT_NE(watch.step(step_of(1, 20 * kMiB)).text, "");
  const auto remark = watch.step(step_of(7, 20 * kMiB + 1, "untagged"));
  EXPECT_EQ(remark.level, LogLevel::kWarning);
  EXPECT_TRUE(remark.text.starts_with("step 7: the peak of rank 3, ")) << remark.text;
  EXPECT_NE(remark.text.find("passes the 20MiB that the plan guarantees whatever the router does: untagged "
                             "holds 14.0MiB, planned 0B"),
            std::string::npos)
      << remark.text;
  EXPECT_EQ(watch.step(step_of(8, 30 * kMiB)).text, "");
}

TEST(PeakWatch, WhatLibrariesTakeBesideIsNothingToTell) {
  auto with_scratch = planned();
  with_scratch.unplanned_bytes = 2 * kMiB;
  PeakWatch watch(with_scratch);
  EXPECT_EQ(watch.step(step_of(1, 14 * kMiB)).text, "");
  EXPECT_EQ(watch.step(step_of(2, 14 * kMiB + 1)).level, LogLevel::kInfo);
  EXPECT_EQ(watch.step(step_of(3, 22 * kMiB)).text, "");
  EXPECT_EQ(watch.step(step_of(4, 22 * kMiB + 1)).level, LogLevel::kWarning);
}

TEST(PeakWatch, AGuaranteeThatIsPassedAtOnceIsAllThatIsSaid) {
  PeakWatch watch(planned());
  EXPECT_EQ(watch.step(step_of(0, 40 * kMiB)).text, "");  // before the first step: no step of the plan's
  EXPECT_EQ(watch.step(step_of(1, 40 * kMiB)).level, LogLevel::kWarning);
  EXPECT_EQ(watch.step(step_of(2, 14 * kMiB)).text, "");
}

}  // namespace
}  // namespace steppe::metrics
