#include "steppe/train/metrics/tensorboard_writer.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>
#include <vector>

#include "steppe/base/error.h"
#include "steppe/train/metrics/crc32c.h"
#include "steppe/train/metrics/metrics_test_support.h"
#include "steppe/train/metrics/tensorboard_scalars.h"

namespace steppe::metrics {
namespace {

using Json = nlohmann::json;

// What the tensorboard package itself reads in the folder.
Json read_by_tensorboard(const std::filesystem::path& folder) {
  const std::string command =
      fmt::format("'{}' '{}' '{}'", STEPPE_TEST_PYTHON, STEPPE_TEST_READER, folder.string());
  FILE* pipe = ::popen(command.c_str(), "r");
  STEPPE_CHECK(pipe != nullptr, "[test] cannot start {}", command);
  std::string output;
  char piece[4096];
  while (const size_t got = std::fread(piece, 1, sizeof(piece), pipe)) output.append(piece, got);
  const int status = ::pclose(pipe);
  STEPPE_CHECK(status == 0, "[test] {} must exit with 0, got {}", command, status);
  return Json::parse(output);
}

std::vector<int64_t> steps_of(const Json& series) {
  std::vector<int64_t> steps;
  for (const Json& point : series) steps.push_back(point.at(0));
  return steps;
}

TEST(Crc32c, MatchesThePublishedCheckValues) {
  EXPECT_EQ(crc32c("123456789"), 0xE3069283u);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8A9136AAu);
  EXPECT_EQ(crc32c(""), 0u);
}

TEST(TensorboardScalars, AreNamedByGroupAndUnit) {
  std::set<std::string> tags;
  for (const Scalar& scalar : tensorboard_scalars(sample_step(3))) {
    EXPECT_TRUE(tags.insert(scalar.tag).second) << scalar.tag << " twice";
  }
  const std::set<std::string> expected = {"train/loss",
                                          "train/grad_norm",
                                          "train/lr",
                                          "train/tokens",
                                          "perf/tokens_per_s_per_gpu",
                                          "perf/tflops_per_gpu",
                                          "perf/mfu",
                                          "perf/step_s",
                                          "perf/data_wait_s",
                                          "memory/peak_gib",
                                          "memory/plan_gib",
                                          "memory/weights_gib",
                                          "memory/grads_gib",
                                          "memory/host_gib",
                                          "moe/load_max_over_mean",
                                          "moe/load_cv",
                                          "moe/dead_expert_frac",
                                          "moe/router_entropy",
                                          "moe/bias_max_abs",
                                          "moe/helpers_max",
                                          "validation/wiki/loss",
                                          "validation/wiki/ppl",
                                          "validation/code/loss",
                                          "validation/code/ppl"};
  EXPECT_EQ(tags, expected);
}

TEST(TensorboardWriter, TensorboardReadsEveryScalarOfEveryStep) {
  const TemporaryFolder folder;
  TensorboardWriter writer(folder / "tensorboard", 0);
  for (int64_t step = 0; step <= 3; ++step) writer.write(sample_step(step));
  const Json read = read_by_tensorboard(folder / "tensorboard");
  std::map<std::string, std::vector<std::pair<int64_t, float>>> expected;
  for (int64_t step = 0; step <= 3; ++step) {
    for (const Scalar& scalar : tensorboard_scalars(sample_step(step))) {
      expected[scalar.tag].emplace_back(step, scalar.value);
    }
  }
  ASSERT_EQ(read.size(), expected.size());
  for (const auto& [tag, points] : expected) {
    ASSERT_TRUE(read.contains(tag)) << tag;
    ASSERT_EQ(read[tag].size(), points.size()) << tag;
    for (size_t i = 0; i < points.size(); ++i) {
      EXPECT_EQ(read[tag][i][0], points[i].first) << tag;
      EXPECT_EQ(read[tag][i][1].get<float>(), points[i].second) << tag;
    }
  }
  EXPECT_EQ(read["train/loss"].size(), 3u);                      // none at step 0
  EXPECT_EQ(read["validation/wiki/loss"].size(), 4u);            // from step 0
  EXPECT_EQ(read["perf/data_wait_s"][0][1].get<float>(), 0.0f);  // a zero is written
  EXPECT_EQ(read["perf/tflops_per_gpu"][0][1].get<float>(), 0.625f);
  EXPECT_EQ(read["memory/plan_gib"][0][1].get<float>(), 4.0f);
}

TEST(TensorboardWriter, AResumedRunReplacesTheStepsItRepeats) {
  const TemporaryFolder folder;
  const std::filesystem::path logs = folder / "tensorboard";
  {
    TensorboardWriter writer(logs, 1);
    for (int64_t step = 1; step <= 6; ++step) writer.write(sample_step(step));
  }
  EXPECT_EQ(steps_of(read_by_tensorboard(logs)["train/loss"]), (std::vector<int64_t>{1, 2, 3, 4, 5, 6}));
  TensorboardWriter writer(logs, 5);
  StepMetrics again = sample_step(5);
  again.loss = 77;
  writer.write(again);
  const Json losses = read_by_tensorboard(logs)["train/loss"];
  EXPECT_EQ(steps_of(losses), (std::vector<int64_t>{1, 2, 3, 4, 5}));
  EXPECT_EQ(losses[4][1], 77);
}

TEST(TensorboardWriter, AFlippedBitIsSeenByTheReader) {
  const TemporaryFolder folder;
  const std::filesystem::path logs = folder / "tensorboard";
  std::filesystem::path file;
  {
    TensorboardWriter writer(logs, 0);
    writer.write(sample_step(1));
    file = writer.path();
    writer.write(sample_step(2));
  }
  std::string bytes = read_text(file);
  bytes[bytes.size() - 20] ^= 1;
  write_text(file, bytes);
  Json read;
  try {
    read = read_by_tensorboard(logs);
  } catch (const RuntimeFailure&) {
    return;  // refused as a whole: seen as well
  }
  EXPECT_EQ(steps_of(read["train/loss"]), (std::vector<int64_t>{1}));
}

TEST(TensorboardWriter, RunsInOneSecondHaveFilesOfTheirOwn) {
  const TemporaryFolder folder;
  const TensorboardWriter first(folder / "tensorboard", 0);
  const TensorboardWriter second(folder / "tensorboard", 3);
  EXPECT_LT(first.path(), second.path());
}

}  // namespace
}  // namespace steppe::metrics
