// Steppe's side of step_vs_transformers: trains the recipe's model on one rank, one step for each line on
// standard input. Every answer is a JSON line: first the starting state, then loss and seconds of each step.
//   steppe_side RECIPE TOKENS WEIGHTS [KEY=VALUE …]
// TOKENS: int32 rows of seq_length + 1. WEIGHTS: the Hugging Face folder with the starting weights.
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <span>
#include <string>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <vector>

#include "steppe/base/counters.h"
#include "steppe/base/error.h"
#include "steppe/checkpoint/hugging_face_weights.h"
#include "steppe/comm/groups.h"
#include "steppe/data/batch_plan.h"
#include "steppe/layout/layout.h"
#include "steppe/memory/tracking_allocator.h"
#include "steppe/model/hugging_face_config.h"
#include "steppe/model/weights.h"
#include "steppe/ops/router/router.h"
#include "steppe/recipe/run_config.h"
#include "steppe/train/configure.h"
#include "steppe/train/step.h"

namespace steppe {
namespace {

using Clock = std::chrono::steady_clock;

void answer(const nlohmann::json& fields) {
  std::cout << fields.dump() << std::endl;
}

std::vector<data::Microbatch> read_rows(const std::string& path, int64_t length) {
  std::ifstream file(path, std::ios::binary);
  STEPPE_CHECK(file.good(), "[benchmark] cannot open {}", path);
  std::vector<data::Microbatch> rows;
  std::vector<int32_t> row(static_cast<size_t>(length) + 1);
  while (file.read(reinterpret_cast<char*>(row.data()),
                   static_cast<std::streamsize>(row.size() * sizeof(int32_t)))) {
    data::Sequence sequence{{row.begin(), row.end() - 1}, {row.begin() + 1, row.end()}, {}, {0}};
    sequence.positions.resize(sequence.tokens.size());
    std::iota(sequence.positions.begin(), sequence.positions.end(), 0);
    rows.emplace_back().append(sequence, static_cast<int64_t>(rows.size()) - 1);
  }
  STEPPE_CHECK_VALUE(!rows.empty(), "[benchmark] {} must hold rows of {} tokens", path, length + 1);
  return rows;
}

void run(const std::string& recipe_path, const std::string& tokens, const std::string& weights_folder,
         std::span<const std::string> overrides) {
  auto recipe = recipe::Recipe::load(recipe_path, overrides);
  const auto run = recipe::read_run_config(recipe);
  const auto model = model::model_config(run.model);
  const auto rows = read_rows(tokens, run.training.seq_length);

  const layout::RankLayout layout({}, 0);
  auto groups =
      comm::make_groups(layout, c10::make_intrusive<c10d::HashStore>(), std::chrono::seconds(60), false);
  Counters counters;
  const ops::OpContext context{at::kCPU, train::compute_dtype(run), &counters};
  model::ModelWeights weights(model, layout, groups, context);
  checkpoint::load_hugging_face_weights(weights, model, weights_folder);
  ops::TopKRouting routing;
  train::Step step(train::step_config(run), model, layout, groups, context, weights, routing);
  answer({{"parameters", model.num_parameters()}, {"threads", at::get_num_threads()}});

  std::string line;
  for (int64_t i = 0; std::getline(std::cin, line); ++i) {
    const auto started = Clock::now();
    const auto result = step.train({&rows[static_cast<size_t>(i) % rows.size()], 1}, run.optimizer.lr, i + 1);
    const std::chrono::duration<double> seconds = Clock::now() - started;
    answer({{"loss", result.loss}, {"seconds", seconds.count()}});
  }
}

}  // namespace
}  // namespace steppe

int main(int argc, char** argv) {
  steppe::memory::install_tracking_allocators();
  if (argc < 4) {
    std::fprintf(stderr, "usage: steppe_side RECIPE TOKENS WEIGHTS [KEY=VALUE …]\n");
    return 2;
  }
  try {
    const std::vector<std::string> overrides(argv + 4, argv + argc);
    steppe::run(argv[1], argv[2], argv[3], overrides);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
