#include "steppe/train/metrics/tensorboard_scalars.h"

#include <cstdint>
#include <utility>

#include "steppe/base/error.h"

namespace steppe::metrics {
namespace {

double gib(int64_t bytes) {
  return static_cast<double>(bytes) / (1024.0 * 1024.0 * 1024.0);
}

}  // namespace

std::vector<Scalar> tensorboard_scalars(const StepMetrics& metrics) {
  STEPPE_CHECK_VALUE(metrics.num_ranks > 0, "[metrics] num_ranks must be positive, got {}",
                     metrics.num_ranks);
  std::vector<Scalar> scalars;
  const auto add = [&scalars](std::string tag, double value) {
    scalars.push_back({std::move(tag), static_cast<float>(value)});
  };
  if (metrics.trained()) {
    add("train/loss", metrics.loss);
    add("train/grad_norm", metrics.grad_norm);
    add("train/lr", metrics.lr);
    add("train/tokens", static_cast<double>(metrics.tokens));
    add("perf/tokens_per_s_per_gpu", metrics.tokens_per_s / metrics.num_ranks);
    add("perf/tflops_per_gpu", metrics.tflops / metrics.num_ranks);
    if (metrics.mfu) add("perf/mfu", *metrics.mfu);
    add("perf/step_s", metrics.step_s);
    add("perf/data_wait_s", metrics.data_wait_s);
  }
  add("memory/peak_gib", gib(metrics.peak_bytes));
  if (metrics.plan_peak_bytes) add("memory/plan_gib", gib(*metrics.plan_peak_bytes));
  for (const auto& [category, bytes] : metrics.peak_by_category)
    add("memory/" + category + "_gib", gib(bytes));
  add("memory/host_gib", gib(metrics.host_bytes));
  if (metrics.trained() && metrics.moe) {
    add("moe/load_max_over_mean", metrics.moe->load_max_over_mean);
    add("moe/load_cv", metrics.moe->load_cv);
    add("moe/dead_expert_frac", metrics.moe->dead_expert_frac);
    add("moe/router_entropy", metrics.moe->router_entropy);
  }
  if (metrics.trained() && metrics.bias_max_abs) add("moe/bias_max_abs", *metrics.bias_max_abs);
  for (const auto& [name, value] : metrics.operator_figures) add(name, value);
  for (const auto& result : metrics.validation) {
    add("validation/" + result.set + "/loss", result.loss);
    add("validation/" + result.set + "/ppl", result.perplexity());
  }
  return scalars;
}

}  // namespace steppe::metrics
