// A run that is stopped and goes on is the run that was not stopped, bit for bit: its losses, its weights and
// moments, the order of its data and its log.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <string_view>

#include "steppe/base/error.h"
#include "steppe/base/temporary_folder.h"
#include "steppe/checkpoint/native_folder.h"
#include "steppe/checkpoint/native_reader.h"
#include "steppe/comm/rank_threads.h"
#include "steppe/data/test_files.h"
#include "steppe/layout/layout.h"
#include "steppe/train/trainer.h"

namespace steppe::testing {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kSteps = 40, kVocab = 61;

// Some 900 tokens: 40 steps of two sequences of 48 go through them four times.
void write_corpus(const std::string& prefix) {
  std::mt19937 rng(3);
  data::Documents documents;
  for (int d = 0; d < 20; ++d) {
    auto& document = documents.emplace_back();
    int64_t token = rng() % kVocab;
    const size_t length = 20 + rng() % 50;
    for (size_t i = 0; i < length; ++i)
      document.push_back(token = rng() % 6 == 0 ? rng() % kVocab : (token * 3 + 7) % kVocab);
  }
  data::write_indexed(prefix, documents);
}

struct Case {
  std::string name;
  layout::LayoutConfig layout;
  std::string dtype = "float32";
  bool async = true;
  std::string placement = "resident";
  std::string gradients = "device", moments = "float32", gradient_dtype = "float32";
};

Case bf16_gradients(Case one) {
  one.gradient_dtype = "bfloat16";
  return one;
}

recipe::RunConfig config_of(const Case& one, const std::string& root, const std::string& name) {
  recipe::RunConfig run;
  run.run = {root + "/" + name, name};
  auto& m = run.model;
  m.num_hidden_layers = 2, m.hidden_size = 32, m.num_attention_heads = 4, m.num_key_value_heads = 2;
  m.head_dim = 8, m.vocab_size = kVocab, m.num_experts = 4, m.num_experts_per_tok = 2;
  m.moe_intermediate_size = 16;
  m.compute_dtype = one.dtype;
  run.router.load_balancing = "expert_bias";
  run.parallelism = {one.layout.ulysses_degree, one.layout.expert_degree, one.layout.vocab_degree};
  run.dispatch.kind = "ep";
  run.optimizer.lr = 3e-3;
  run.optimizer.placement = one.placement;
  run.optimizer.gradients = one.gradients, run.optimizer.moments_dtype = one.moments;
  run.training.gradient_dtype = one.gradient_dtype;
  run.optimizer.bucket_params = 5000;
  run.lr_scheduler.warmup_steps = 5;
  run.lr_scheduler.decay_steps = kSteps - 5;
  run.training.steps = kSteps, run.training.seq_length = 48, run.training.global_batch_size = 2;
  run.data.train = {{root + "/corpus", "corpus"}};
  run.validation.interval = 0;
  run.checkpoint.folder = run.run.folder + "/checkpoints";
  run.checkpoint.interval = 0;
  run.checkpoint.async = one.async;
  run.logging.report_to = {"jsonl"};
  return run;
}

// Ranks as threads; SIGTERM after `stop_after`, if that is a step.
train::Outcome train_run(
    const recipe::RunConfig& run, int world_size, int64_t stop_after = -1,
    const std::function<void(int64_t step)>& at_step = [](int64_t) {},
    const std::function<void(train::Process&)>& change = [](train::Process&) {}) {
  train::Outcome outcome;
  std::atomic<int64_t> finished{-1};
  comm::run_ranks(
      world_size,
      [&](int rank, const c10::intrusive_ptr<c10d::Store>& store) {
        train::Process process{
            .rank = rank, .world_size = world_size, .local_world_size = world_size, .store = store};
        process.finished_step = [&, rank](int64_t step) {
          if (rank != 0) return;
          finished = step;
          at_step(step);
        };
        process.stop_signal = [&] { return finished == stop_after && stop_after > 0 ? SIGTERM : 0; };
        change(process);
        const auto log = Log::silent();
        train::Trainer trainer(run, process, log);
        const auto own = trainer.run();
        if (rank == 0) outcome = own;
      },
      std::chrono::minutes(15));  // a busy machine takes its time
  return outcome;
}

std::vector<nlohmann::json> metrics_of(const recipe::RunConfig& run) {
  std::ifstream stream(run.run.folder + "/metrics.jsonl");
  std::vector<nlohmann::json> lines;
  for (std::string line; std::getline(stream, line);) lines.push_back(nlohmann::json::parse(line));
  return lines;
}

std::map<std::string, std::vector<float>> tensors_of(const recipe::RunConfig& run) {
  checkpoint::NativeReader reader(run.checkpoint.folder);
  std::map<std::string, std::vector<float>> all;
  for (const auto& [name, tensor] : reader.manifest().tensors) {
    int64_t numel = 1;
    for (const int64_t size : tensor.shape) numel *= size;
    const auto& piece = tensor.pieces.front();
    for (const auto& stored : reader.manifest().files[piece.file].units[piece.unit].states) {
      auto& values = all[fmt::format("{} {}", name, checkpoint::name_of(stored.state))];
      values.resize(static_cast<size_t>(numel));
      reader.read(name, stored.state, 0, values);
    }
  }
  return all;
}

void expect_same_log(const recipe::RunConfig& straight, const recipe::RunConfig& resumed) {
  const auto expected = metrics_of(straight), got = metrics_of(resumed);
  ASSERT_EQ(expected.size(), static_cast<size_t>(kSteps));
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) {
    for (const auto* key : {"step", "loss", "grad_norm", "lr", "tokens", "target_tokens", "moe/bias_max_abs"})
      EXPECT_EQ(got[i].at(key), expected[i].at(key)) << "step " << i + 1 << ", " << key;
  }
}

class Resume : public ::testing::TestWithParam<Case> {};

TEST_P(Resume, TwiceTwentyStepsAreForty) {
  const auto& one = GetParam();
  const TemporaryFolder folder;
  write_corpus(folder / "corpus");
  const auto straight = config_of(one, folder / "", "straight");
  auto stopped = config_of(one, folder / "", "stopped");
  stopped.checkpoint.interval = 6;
  EXPECT_EQ(train_run(straight, one.layout.world_size).step, kSteps);
  const auto first = train_run(stopped, one.layout.world_size, 20);
  EXPECT_EQ(first.step, 20);
  EXPECT_EQ(first.stop_signal, SIGTERM);
  EXPECT_EQ(metrics_of(stopped).size(), 20U);
  EXPECT_EQ(train_run(stopped, one.layout.world_size).step, kSteps);
  expect_same_log(straight, stopped);
  EXPECT_EQ(tensors_of(stopped), tensors_of(straight));
  EXPECT_LT(metrics_of(straight).back().at("loss"),
            metrics_of(straight).front().at("loss").get<double>() - 0.3);
}

// What one placement saved, another goes on with: the update has the same bits in all.
TEST(Placements, GoOnWithOneAnothersCheckpoints) {
  const TemporaryFolder folder;
  write_corpus(folder / "corpus");
  Case one{"", {1, 1, 1, 1}, "bfloat16"};
  const auto straight = config_of(one, folder / "", "straight");
  train_run(straight, 1);
  const auto moving = [&](const char* placement) {
    one.placement = placement;
    return config_of(one, folder / "", "moving");
  };
  train_run(moving("stream"), 1, 11);
  train_run(moving("cpu"), 1, 23);
  train_run(moving("resident"), 1);
  expect_same_log(straight, moving("resident"));
  EXPECT_EQ(tensors_of(moving("resident")), tensors_of(straight));
}

// What was logged past the checkpoint is logged again, once.
TEST_P(Resume, GoesBackToTheNewestCheckpointAfterACrash) {
  const auto& one = GetParam();
  const TemporaryFolder folder;
  write_corpus(folder / "corpus");
  const auto straight = config_of(one, folder / "", "straight");
  auto crashed = config_of(one, folder / "", "crashed");
  crashed.checkpoint.interval = 8;
  train_run(straight, one.layout.world_size);
  train_run(crashed, one.layout.world_size, 29);
  // As if the machine had stopped during step 29's save: 24 is the newest that is whole.
  fs::rename(checkpoint::checkpoint_path(crashed.checkpoint.folder, 29),
             checkpoint::partial_path(crashed.checkpoint.folder, 29));
  fs::remove(checkpoint::partial_path(crashed.checkpoint.folder, 29) + "/manifest.json");
  EXPECT_EQ(checkpoint::resolve_checkpoint(crashed.checkpoint.folder),
            checkpoint::checkpoint_path(crashed.checkpoint.folder, 24));
  EXPECT_EQ(train_run(crashed, one.layout.world_size).step, kSteps);
  expect_same_log(straight, crashed);
  EXPECT_EQ(tensors_of(crashed), tensors_of(straight));
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, Resume,
    ::testing::Values(
        Case{"one_rank", {1, 1, 1, 1}}, Case{"one_rank_bf16", {1, 1, 1, 1}, "bfloat16"},
        Case{"two_ranks_bf16", {2, 2, 2, 2}, "bfloat16"},
        Case{"two_ranks_waiting", {2, 1, 2, 1}, "float32", false},
        Case{"two_ranks_cpu", {2, 1, 2, 2}, "bfloat16", true, "cpu"},
        Case{"one_rank_cpu_fp32", {1, 1, 1, 1}, "float32", true, "cpu"},
        Case{"two_ranks_stream", {2, 2, 1, 2}, "bfloat16", true, "stream"},
        Case{"two_ranks_stream_host_gradients", {2, 1, 2, 1}, "bfloat16", true, "stream", "host"},
        Case{"one_rank_cpu_bf16_moments", {1, 1, 1, 1}, "bfloat16", true, "cpu", "host", "bfloat16"},
        Case{"one_rank_bf16_moments", {1, 1, 1, 1}, "bfloat16", true, "resident", "device", "bfloat16"},
        bf16_gradients({"two_ranks_bf16_gradients", {2, 1, 2, 1}, "bfloat16"}),
        bf16_gradients(
            {"one_rank_stream_bf16_host_gradients", {1, 1, 1, 1}, "bfloat16", true, "stream", "host"})),
    [](const auto& one) { return one.param.name; });

struct Trial {
  Trial() { write_corpus(folder / "corpus"); }
  recipe::RunConfig config(const std::string& name = "run") const {
    auto run = config_of({"", {1, 1, 1, 1}}, folder / "", name);
    run.training.steps = 6;
    return run;
  }
  TemporaryFolder folder;
};

std::vector<int64_t> saved_steps(const recipe::RunConfig& run) {
  std::vector<int64_t> steps;
  for (const auto& found : checkpoint::look_into(run.checkpoint.folder).complete) steps.push_back(found.step);
  return steps;
}

TEST(Checkpointing, SavesAfterTheFirstStepOnTheIntervalAndAtTheEnd) {
  const Trial trial;
  auto run = trial.config();
  run.checkpoint.interval = 4;
  run.checkpoint.keep = 0;
  train_run(run, 1);
  EXPECT_EQ(saved_steps(run), (std::vector<int64_t>{1, 4, 6}));
  EXPECT_EQ(train_run(run, 1).step, 6);  // nothing is left to do
  EXPECT_EQ(metrics_of(run).size(), 6U);
}

TEST(Checkpointing, WithoutMemoryForACopyTrainingWaits) {
  const Trial trial;
  auto run = trial.config();
  run.checkpoint.interval = 2;
  run.checkpoint.keep = 0;
  run.checkpoint.host_budget = 1000;
  std::vector<int64_t> seen;
  train_run(run, 1, -1, [&](int64_t step) {
    if (step == 5) seen = saved_steps(run);
  });
  EXPECT_EQ(seen, (std::vector<int64_t>{1, 2, 4}));  // as soon as the step is done
  EXPECT_EQ(saved_steps(run), (std::vector<int64_t>{1, 2, 4, 6}));
}

TEST(Checkpointing, SavesWhenSomebodyTouchesTheFile) {
  const Trial trial;
  auto run = trial.config();
  run.checkpoint.keep = 0;
  run.checkpoint.first_step = false;
  fs::create_directories(run.run.folder);
  std::ofstream(run.run.folder + "/save");
  train_run(run, 1);
  EXPECT_EQ(saved_steps(run), (std::vector<int64_t>{1, 6}));
  EXPECT_FALSE(fs::exists(run.run.folder + "/save"));
}

// The signal reaches rank 1 alone, in the first of a validation's nine batches.
class ValidationStop : public ::testing::TestWithParam<int64_t> {};

TEST_P(ValidationStop, DropsTheValidationOnAllRanksAndSavesTheStep) {
  const int64_t stop_step = GetParam();
  const Trial trial;
  auto run = trial.config();
  run.validation.interval = 4, run.validation.at_start = true;
  run.validation.sets = {{trial.folder / "corpus", "held"}};
  // A batch moves the watchdog on several times.
  std::array<std::atomic<int>, 2> moves{};
  std::atomic<int> moves_of_a_whole = 0;
  const auto outcome = train_run(
      run, 2, -1, [](int64_t) {},
      [&](train::Process& process) {
        auto& mine = moves[static_cast<size_t>(process.rank)];
        process.progress = [&mine, stop_step](int64_t step, const char* where) {
          if (step == stop_step && std::string_view(where) == "validation") ++mine;
        };
        process.stop_signal = [&mine, rank = process.rank] { return rank == 1 && mine >= 2 ? SIGTERM : 0; };
      });
  EXPECT_EQ(outcome.stop_signal, SIGTERM);
  EXPECT_EQ(outcome.step, stop_step);
  if (stop_step == 0) {
    EXPECT_TRUE(saved_steps(run).empty());
    EXPECT_TRUE(metrics_of(run).empty());
  } else {
    EXPECT_EQ(saved_steps(run).back(), stop_step);
    EXPECT_EQ(metrics_of(run).back().at("step"), stop_step);
    EXPECT_FALSE(metrics_of(run).back().contains("validation"));
  }
  const auto again = train_run(
      run, 2, -1, [](int64_t) {},
      [&](train::Process& process) {
        if (process.rank != 0) return;
        process.progress = [&](int64_t step, const char* where) {
          if (step == 6 && std::string_view(where) == "validation") ++moves_of_a_whole;
        };
      });
  EXPECT_EQ(again.step, 6);
  EXPECT_TRUE(metrics_of(run).back().contains("validation"));
  for (const auto& some : moves) EXPECT_LT(some, moves_of_a_whole / 4);
}

INSTANTIATE_TEST_SUITE_P(Checkpointing, ValidationStop, ::testing::Values(0, 4));

std::string failure_of(const std::function<void()>& act) {
  try {
    act();
  } catch (const std::exception& error) {
    return error.what();
  }
  return {};
}

TEST(Checkpointing, TrainingGoesOnAfterAFailedSaveAndWithoutItsFolder) {
  const Trial trial;
  auto run = trial.config();
  run.checkpoint.interval = 2;
  run.checkpoint.keep = 0;
  std::vector<int64_t> after_failure;
  const auto outcome = train_run(run, 1, -1, [&](int64_t step) {
    // A file in the way of step 2's folder; and before step 4, somebody removes everything.
    if (step == 2) std::ofstream(checkpoint::partial_path(run.checkpoint.folder, 2)) << "in the way";
    if (step == 4) {
      after_failure = saved_steps(run);
      fs::remove_all(run.checkpoint.folder);
    }
  });
  EXPECT_EQ(outcome.step, 6);
  EXPECT_EQ(after_failure, (std::vector<int64_t>{1}));
  EXPECT_EQ(saved_steps(run), (std::vector<int64_t>{4, 6}));
}

TEST(Checkpointing, AFolderThatCannotBeWrittenStopsTheRunAtItsFirstSave) {
  const Trial trial;
  auto run = trial.config();
  std::ofstream(trial.folder / "file");
  run.checkpoint.folder = trial.folder / "file/checkpoints";
  const auto message = failure_of([&] { train_run(run, 1); });
  EXPECT_NE(message.find("step 1 is not saved: rank 0: "), std::string::npos) << message;
  EXPECT_NE(message.find("file/checkpoints"), std::string::npos) << message;
  EXPECT_NE(message.find("Not a directory"), std::string::npos) << message;
}

TEST(Checkpointing, AnotherRunsCheckpointIsRefusedButItsWeightsAreTaken) {
  const Trial trial;
  const auto run = trial.config();
  train_run(run, 1);
  auto longer = trial.config("longer");
  longer.training.seq_length = 96;
  longer.checkpoint.load = run.checkpoint.folder + "/latest";
  const auto message = failure_of([&] { train_run(longer, 1); });
  EXPECT_NE(message.find("training.seq_length = 48, this run has 96"), std::string::npos) << message;
  longer.checkpoint.load_weights_only = true;
  EXPECT_EQ(train_run(longer, 1).step, 6);
  EXPECT_EQ(metrics_of(longer).size(), 6U);
  // Six steps were not for nothing; and once it has checkpoints of its own, it goes on from them.
  EXPECT_LT(metrics_of(longer).front().at("loss"), metrics_of(run).at(2).at("loss"));
  longer.training.steps = 8;
  EXPECT_EQ(train_run(longer, 1).step, 8);
  EXPECT_EQ(metrics_of(longer).size(), 8U);
}

TEST(Checkpointing, LoadGoesOnElsewhere) {
  const Trial trial;
  auto run = trial.config();
  train_run(run, 1);
  auto elsewhere = trial.config("elsewhere");
  elsewhere.training.steps = 9;
  elsewhere.checkpoint.load = run.checkpoint.folder;
  EXPECT_EQ(train_run(elsewhere, 1).step, 9);
  ASSERT_EQ(metrics_of(elsewhere).size(), 3U);
  EXPECT_EQ(metrics_of(elsewhere).front().at("step"), 7);
}

}  // namespace
}  // namespace steppe::testing
