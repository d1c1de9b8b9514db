#include "steppe/train/metrics/jsonl_writer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>
#include <vector>

#include "steppe/base/error.h"
#include "steppe/train/metrics/metrics_test_support.h"

namespace steppe::metrics {
namespace {

using Json = nlohmann::json;

std::vector<int64_t> steps_in(const std::filesystem::path& path) {
  std::istringstream lines(read_text(path));
  std::vector<int64_t> steps;
  for (std::string line; std::getline(lines, line);) steps.push_back(Json::parse(line).at("step"));
  return steps;
}

void write_steps(const std::filesystem::path& path, int64_t first, int64_t last) {
  JsonlWriter writer(path, first);
  for (int64_t step = first; step <= last; ++step) writer.write(sample_step(step));
}

TEST(JsonLine, HoldsEveryFigureUnderItsName) {
  const StepMetrics step = sample_step(7);
  const Json line = Json::parse(json_line(step));
  EXPECT_EQ(line.at("step"), 7);
  EXPECT_EQ(line.at("loss").get<double>(), step.loss);
  EXPECT_EQ(line.at("grad_norm").get<double>(), step.grad_norm);
  EXPECT_EQ(line.at("lr").get<double>(), step.lr);
  EXPECT_EQ(line.at("tokens"), 7 * 4096);
  EXPECT_EQ(line.at("target_tokens"), 4095);
  EXPECT_EQ(line.at("num_ranks"), 4);
  EXPECT_EQ(line.at("tokens_per_s").get<double>(), step.tokens_per_s);
  EXPECT_EQ(line.at("tflops"), 2.5);
  EXPECT_EQ(line.at("mfu").get<double>(), 0.41);
  EXPECT_EQ(line.at("step_s").get<double>(), 0.3);
  EXPECT_EQ(line.at("data_wait_s"), 0);
  EXPECT_EQ(line.at("time_left_s"), 3723);
  EXPECT_EQ(line.at("peak_bytes"), 3221225472);
  EXPECT_EQ(line.at("plan_peak_bytes"), 4294967296);
  EXPECT_EQ(line.at("peak_by_category"), Json({{"grads", 1073741824}, {"weights", 2147483648}}));
  EXPECT_EQ(line.at("host_bytes"), 536870912);
  EXPECT_EQ(line.at("moe/load_max_over_mean"), 1.5);
  EXPECT_EQ(line.at("moe/load_cv"), 0.25);
  EXPECT_EQ(line.at("moe/dead_expert_frac"), 0.125);
  EXPECT_EQ(line.at("moe/router_entropy").get<double>(), 0.9);
  EXPECT_EQ(line.at("moe/bias_max_abs").get<double>(), 0.003);
  EXPECT_EQ(line.at("moe/expert_load"), Json::parse("[[5,0,7],[4,4,4]]"));
  EXPECT_EQ(line.at("moe/helpers_max"), 2);
  EXPECT_EQ(line.at("validation").at("wiki").at("loss"), 2.25);
  EXPECT_EQ(line.at("validation").at("code").at("tokens"), 100);
  EXPECT_NEAR(line.at("validation").at("code").at("ppl").get<double>(), std::exp(1.125), 1e-15);
  EXPECT_FALSE(line.contains("nonfinite"));
}

TEST(JsonLine, ReadsBackTheSameDoubles) {
  StepMetrics step = sample_step(1);
  double loss = 2.0;
  for (int i = 0; i < 1000; ++i) {
    loss = std::nextafter(loss * 1.0037, 1e300);
    step.loss = loss;
    step.lr = 1.0 / loss;
    const Json line = Json::parse(json_line(step));
    ASSERT_EQ(line.at("loss").get<double>(), loss);
    ASSERT_EQ(line.at("lr").get<double>(), 1.0 / loss);
  }
}

TEST(JsonLine, NonFiniteNumbersAreNullAndNamed) {
  StepMetrics step = sample_step(1);
  step.loss = std::numeric_limits<double>::quiet_NaN();
  step.grad_norm = -std::numeric_limits<double>::infinity();
  step.validation = {{"wiki", 1e4, 8}};  // its perplexity overflows
  const Json line = Json::parse(json_line(step));
  EXPECT_TRUE(line.at("loss").is_null());
  EXPECT_TRUE(line.at("grad_norm").is_null());
  EXPECT_TRUE(line.at("validation").at("wiki").at("ppl").is_null());
  EXPECT_EQ(line.at("nonfinite"),
            Json({{"loss", "nan"}, {"grad_norm", "-inf"}, {"validation/wiki/ppl", "inf"}}));
}

TEST(JsonLine, LeavesOutWhatHasNoMeaning) {
  const Json before_training = Json::parse(json_line(sample_step(0)));
  EXPECT_EQ(before_training.at("step"), 0);
  EXPECT_TRUE(before_training.contains("validation"));
  EXPECT_FALSE(before_training.contains("loss"));
  EXPECT_FALSE(before_training.contains("moe/load_cv"));
  StepMetrics dense;
  dense.step = 1;
  const Json line = Json::parse(json_line(dense));
  for (const char* key :
       {"mfu", "plan_peak_bytes", "moe/load_cv", "moe/bias_max_abs", "moe/expert_load", "validation"}) {
    EXPECT_FALSE(line.contains(key)) << key;
  }
}

TEST(JsonLine, AKeyGivenTwiceIsABug) {
  StepMetrics step = sample_step(1);
  step.operator_figures["loss"] = 1;
  EXPECT_THROW(json_line(step), InternalError);
}

TEST(JsonlWriter, EveryStepIsInTheFileAtOnce) {
  const TemporaryFolder folder;
  const std::filesystem::path path = folder / "deep/run/metrics.jsonl";
  JsonlWriter writer(path, 0);
  writer.write(sample_step(0));
  EXPECT_EQ(steps_in(path), (std::vector<int64_t>{0}));
  writer.write(sample_step(1));
  writer.sync();
  EXPECT_EQ(steps_in(path), (std::vector<int64_t>{0, 1}));
  EXPECT_EQ(writer.dropped_lines(), 0);
  EXPECT_THROW(writer.write(sample_step(1)), InternalError);
}

TEST(JsonlWriter, ResumeHasNeitherGapNorRepeat) {
  const TemporaryFolder folder;
  const std::filesystem::path path = folder / "metrics.jsonl";
  write_steps(path, 0, 9);
  const std::string until_5 = read_text(path).substr(0, read_text(path).find("{\"step\":6,"));
  {
    JsonlWriter writer(path, 6);
    EXPECT_EQ(writer.dropped_lines(), 4);
    EXPECT_EQ(read_text(path), until_5);
    EXPECT_THROW(writer.write(sample_step(5)), InternalError);
    for (int64_t step = 6; step <= 11; ++step) writer.write(sample_step(step));
  }
  EXPECT_EQ(steps_in(path), (std::vector<int64_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}));
  EXPECT_EQ(JsonlWriter(path, 12).dropped_lines(), 0);
  EXPECT_EQ(JsonlWriter(path, 0).dropped_lines(), 12);
  EXPECT_EQ(read_text(path), "");
}

TEST(JsonlWriter, AnUnfinishedLastLineIsDropped) {
  const TemporaryFolder folder;
  const std::filesystem::path path = folder / "metrics.jsonl";
  write_steps(path, 1, 3);
  const std::string whole = read_text(path);
  // Cut within the third line at every place, its newline included.
  const size_t third = whole.find("{\"step\":3,");
  for (size_t length = third + 1; length < whole.size(); length += 13) {
    write_text(path, whole.substr(0, length));
    JsonlWriter writer(path, 3);
    EXPECT_EQ(writer.dropped_lines(), 1);
    writer.write(sample_step(3));
    EXPECT_EQ(read_text(path), whole);
  }
}

TEST(JsonlWriter, RefusesAFileThatIsNotItsOwn) {
  const TemporaryFolder folder;
  const std::filesystem::path path = folder / "metrics.jsonl";
  for (const std::string text : {"{\"step\":1}\nhello\n", "{\"step\":1}\n{\"step\":1}\n", "{\"step\":x}\n"}) {
    write_text(path, text);
    EXPECT_THROW(JsonlWriter(path, 2), RuntimeFailure) << text;
    EXPECT_EQ(read_text(path), text);
  }
  write_text(path, "{\"step\":1}\nhello\n");
  try {
    JsonlWriter writer(path, 2);
    FAIL() << "a foreign line was taken";
  } catch (const RuntimeFailure& failure) {
    EXPECT_NE(std::string(failure.what()).find("metrics.jsonl:2 must be an object"), std::string::npos)
        << failure.what();
  }
}

TEST(JsonlWriter, NamesTheFileThatCannotBeWritten) {
  const TemporaryFolder folder;
  const std::filesystem::path blocked = folder / "file";
  write_text(blocked, "in the way");
  try {
    JsonlWriter writer(blocked / "metrics.jsonl", 0);
    FAIL() << "a file was taken for a folder";
  } catch (const RuntimeFailure& failure) {
    EXPECT_NE(std::string(failure.what()).find(blocked.string()), std::string::npos) << failure.what();
  }
}

}  // namespace
}  // namespace steppe::metrics
