// For the tests of this folder: whole files as text, and a step with every figure set.
#pragma once

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>

#include "steppe/base/error.h"
#include "steppe/base/temporary_folder.h"
#include "steppe/train/metrics/step_metrics.h"

namespace steppe::metrics {

inline std::string read_text(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  STEPPE_CHECK(file.is_open(), "[test] cannot read {}", path.string());
  return {std::istreambuf_iterator<char>(file), {}};
}

inline void write_text(const std::filesystem::path& path, std::string_view text) {
  std::ofstream(path, std::ios::binary) << text;
}

inline StepMetrics sample_step(int64_t step) {
  StepMetrics metrics;
  metrics.step = step;
  metrics.loss = 10.0 / 3.0 / static_cast<double>(step + 1);
  metrics.grad_norm = 0.1;
  metrics.lr = 3e-4;
  metrics.tokens = 4096 * step;
  metrics.target_tokens = 4095;
  metrics.num_ranks = 4;
  metrics.tokens_per_s = 12345.678;
  metrics.tflops = 2.5;
  metrics.mfu = 0.41;
  metrics.step_s = 0.3;
  metrics.data_wait_s = 0.0;
  metrics.time_left_s = 3723;
  metrics.peak_bytes = 3LL << 30;
  metrics.peak_by_category = {{"weights", 2LL << 30}, {"grads", 1LL << 30}};
  metrics.plan_peak_bytes = 4LL << 30;
  metrics.host_bytes = 1LL << 29;
  metrics.moe = MoeHealth{1.5, 0.25, 0.125, 0.9};
  metrics.bias_max_abs = 0.003;
  metrics.expert_load = {{5, 0, 7}, {4, 4, 4}};
  metrics.operator_figures = {{"moe/helpers_max", 2}};
  metrics.validation = {{"wiki", 2.25, 8192}, {"code", 1.125, 100}};
  return metrics;
}

}  // namespace steppe::metrics
