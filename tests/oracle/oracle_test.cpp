// The step against transformers: the same starting weights, the same batches of real text, the same optimizer
// in fp32. make_reference.py trains there and writes down losses and first gradients; here the step trains
// again.
#include <ATen/core/Tensor.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <ostream>
#include <string>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <vector>

#include "steppe/base/counters.h"
#include "steppe/base/temporary_folder.h"
#include "steppe/checkpoint/hugging_face_weights.h"
#include "steppe/checkpoint/safetensors.h"
#include "steppe/comm/groups.h"
#include "steppe/data/batch_plan.h"
#include "steppe/layout/layout.h"
#include "steppe/model/hugging_face_config.h"
#include "steppe/model/weights.h"
#include "steppe/ops/router/router.h"
#include "steppe/train/step.h"

namespace steppe {
namespace {

constexpr double kFirstLossTolerance = 2e-6, kLossTolerance = 1e-4, kGradientTolerance = 1e-5,
                 kLeastFall = 0.3;

struct Case {
  std::string family;
  int64_t steps;
  train::Recompute recompute;
};
void PrintTo(const Case& c, std::ostream* out) {
  *out << c.family;
}

// What the script wrote for a family, made once for all tests.
struct Reference {
  TemporaryFolder folder;
  std::optional<checkpoint::SafetensorsFile> file;
};

void make_reference(const Case& c, Reference& reference) {
  const std::string python = STEPPE_PYTHON_FOR_TEST;
  ASSERT_FALSE(python.empty()) << "CMake was not told of a Python";
  const auto& folder = reference.folder;
  const std::string command =
      fmt::format("'{}' '{}' '{}' --family {} --steps {} > '{}' 2>&1", python, STEPPE_MAKE_REFERENCE,
                  folder / "", c.family, c.steps, folder / "log");
  const int status = std::system(command.c_str());
  std::ifstream log(folder / "log");
  ASSERT_EQ(status, 0) << std::string(std::istreambuf_iterator<char>(log), {});
  reference.file.emplace(folder / "reference.safetensors");
}

// Each step's rows as one micro-batch; every row is a document.
std::vector<data::Microbatch> read_batches(const checkpoint::SafetensorsFile& file) {
  const auto& shape = file.at("batches").shape;  // steps, sequences, length + 1
  const auto bytes = file.read<int32_t>("batches");
  std::vector<data::Microbatch> batches(static_cast<size_t>(shape[0]));
  int64_t sequence_index = 0;
  auto row = bytes.begin();
  for (auto& batch : batches) {
    for (int64_t s = 0; s < shape[1]; ++s, row += shape[2], ++sequence_index) {
      data::Sequence sequence{{row, row + shape[2] - 1}, {row + 1, row + shape[2]}, {}, {0}};
      sequence.positions.resize(sequence.tokens.size());
      std::iota(sequence.positions.begin(), sequence.positions.end(), 0);
      batch.append(sequence, sequence_index);
    }
  }
  return batches;
}

train::StepConfig step_config(train::Recompute recompute) {
  train::StepConfig config;
  config.recompute = recompute;
  config.dispatch.kind = ops::DispatchKind::kPipelinedLlep;  // a recipe's default
  config.adamw = {.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1};
  config.max_grad_norm = 1.0;
  return config;
}

// One rank with the reference's starting weights.
struct Trainer {
  Trainer(const std::string& folder, train::Recompute recompute)
      : model(model::read_hugging_face_config(folder + "config.json")),
        layout({}, 0),
        groups(comm::make_groups(layout, c10::make_intrusive<c10d::HashStore>(), std::chrono::minutes(5),
                                 false)),
        context{at::kCPU, at::kFloat, &counters},
        weights(model, layout, groups, context),
        step(step_config(recompute), model, layout, groups, context, weights, routing) {
    checkpoint::load_hugging_face_weights(weights, model, folder);
  }

  model::ModelConfig model;
  layout::RankLayout layout;
  comm::Groups groups;
  Counters counters;
  ops::OpContext context;
  model::ModelWeights weights;
  ops::TopKRouting routing;
  train::Step step;
};

double relative_difference(const std::vector<float>& x, const std::vector<float>& reference) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double d = static_cast<double>(x[i]) - reference[i];
    difference += d * d;
    norm += static_cast<double>(reference[i]) * reference[i];
  }
  return norm > 0 ? std::sqrt(difference / norm) : std::sqrt(difference);
}

void expect_gradients(Trainer& trainer, const checkpoint::SafetensorsFile& file) {
  size_t compared = 0;
  double worst = 0;
  std::string worst_name;
  for (const auto& unit : trainer.weights.units()) {
    for (const auto& slice : unit.slices()) {
      const auto expected = file.read<float>("grad." + slice.tensor);
      const auto got = checkpoint::read_logical(unit, slice.tensor, checkpoint::UnitPart::kGradient);
      ASSERT_EQ(got.size(), expected.size()) << slice.tensor;
      const double difference = relative_difference(got, expected);
      EXPECT_LE(difference, kGradientTolerance) << slice.tensor;
      if (difference > worst) worst = difference, worst_name = slice.tensor;
      ++compared;
    }
  }
  // Each reference gradient has met its own.
  const std::string prefix = "grad.";
  size_t given = 0;
  for (const auto& [name, entry] : file.tensors()) given += name.starts_with(prefix) ? 1 : 0;
  EXPECT_EQ(compared, given);
  std::printf("gradients: worst ‖Δ‖/‖g‖ %.1e of %zu tensors (%s)\n", worst, compared, worst_name.c_str());
}

class OracleStep : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    auto& reference = made()[GetParam().family];
    if (!reference) make_reference(GetParam(), *(reference = std::make_unique<Reference>()));
    ASSERT_TRUE(reference->file) << "make_reference.py failed";
    reference_ = reference.get();
  }
  static void TearDownTestSuite() { made().clear(); }
  static std::map<std::string, std::unique_ptr<Reference>>& made() {
    static std::map<std::string, std::unique_ptr<Reference>> all;
    return all;
  }
  Reference* reference_ = nullptr;
};

TEST_P(OracleStep, TrainsAsTransformersDoes) {
  const auto& file = *reference_->file;
  const auto losses = file.read<double>("losses");
  const auto learning_rate = file.read<double>("learning_rate").front();
  const auto batches = read_batches(file);
  ASSERT_EQ(losses.size(), batches.size());
  ASSERT_EQ(static_cast<int64_t>(losses.size()), GetParam().steps);
  Trainer trainer(reference_->folder / "", GetParam().recompute);
  double worst = 0, least = losses.front();
  for (size_t i = 0; i < batches.size(); ++i) {
    SCOPED_TRACE(testing::Message() << "step " << i);
    auto result = trainer.step.accumulate({&batches[i], 1});
    if (i == 0) expect_gradients(trainer, file);
    trainer.step.update(result, learning_rate, static_cast<int64_t>(i) + 1);
    ASSERT_NEAR(result.loss, losses[i], i == 0 ? kFirstLossTolerance : kLossTolerance);
    worst = std::max(worst, std::abs(result.loss - losses[i]));
    least = std::min(least, result.loss);
    if (i == 0) std::printf("first loss: |Δ| %.1e\n", worst);
  }
  EXPECT_LE(least, losses.front() - kLeastFall);
  std::printf("losses: worst |Δ| %.1e in %zu steps, from %.4f to %.4f\n", worst, losses.size(),
              losses.front(), losses.back());
}

constexpr auto kEverything = train::Recompute::kFull, kNothing = train::Recompute::kNone;
INSTANTIATE_TEST_SUITE_P(Recompute, OracleStep,
                         ::testing::Values(Case{"qwen3_moe", 50, kEverything},
                                           Case{"qwen3_moe", 50, kNothing}, Case{"mixtral", 12, kEverything},
                                           Case{"olmoe", 12, kEverything}, Case{"olmoe", 12, kNothing}),
                         [](const auto& name) {
                           return name.param.family +
                                  (name.param.recompute == kEverything ? "_everything" : "_nothing");
                         });

}  // namespace
}  // namespace steppe
