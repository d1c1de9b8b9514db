// The words of RUN/metrics.jsonl; the contract is in jsonl_writer.h.
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "steppe/base/error.h"
#include "steppe/train/metrics/jsonl_writer.h"

namespace steppe::metrics {
namespace {

using Json = nlohmann::ordered_json;

class Line {
 public:
  template <typename Value>
  void put(const std::string& key, Value&& value) {
    STEPPE_ASSERT(!object_.contains(key), "[metrics] the key '{}' must be given once a step", key);
    object_[key] = std::forward<Value>(value);
  }

  // JSON has no NaN: null keeps readers working, and `nonfinite` keeps the fact.
  Json real(const std::string& name, double value) {
    if (std::isfinite(value)) return value;
    nonfinite_[name] = std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
    return nullptr;
  }

  void put_real(const std::string& key, double value) { put(key, real(key, value)); }

  std::string finish() {
    if (!nonfinite_.empty()) put("nonfinite", nonfinite_);
    return object_.dump(-1, ' ', false, Json::error_handler_t::replace);
  }

 private:
  Json object_ = Json::object();
  Json nonfinite_ = Json::object();
};

void put_training(Line& line, const StepMetrics& metrics) {
  line.put_real("loss", metrics.loss);
  line.put_real("grad_norm", metrics.grad_norm);
  line.put_real("lr", metrics.lr);
  line.put("tokens", metrics.tokens);
  line.put("target_tokens", metrics.target_tokens);
  line.put("num_ranks", metrics.num_ranks);
  line.put_real("tokens_per_s", metrics.tokens_per_s);
  line.put_real("tflops", metrics.tflops);
  if (metrics.mfu) line.put_real("mfu", *metrics.mfu);
  line.put_real("step_s", metrics.step_s);
  line.put_real("data_wait_s", metrics.data_wait_s);
  line.put_real("time_left_s", metrics.time_left_s);
}

void put_router(Line& line, const StepMetrics& metrics) {
  if (metrics.moe) {
    line.put_real("moe/load_max_over_mean", metrics.moe->load_max_over_mean);
    line.put_real("moe/load_cv", metrics.moe->load_cv);
    line.put_real("moe/dead_expert_frac", metrics.moe->dead_expert_frac);
    line.put_real("moe/router_entropy", metrics.moe->router_entropy);
  }
  if (metrics.bias_max_abs) line.put_real("moe/bias_max_abs", *metrics.bias_max_abs);
  if (!metrics.expert_load.empty()) line.put("moe/expert_load", metrics.expert_load);
}

Json validation_sets(Line& line, const StepMetrics& metrics) {
  Json sets = Json::object();
  for (const auto& result : metrics.validation) {
    const std::string name = "validation/" + result.set;
    Json one = Json::object();
    one["loss"] = line.real(name + "/loss", result.loss);
    one["ppl"] = line.real(name + "/ppl", result.perplexity());
    one["tokens"] = result.tokens;
    sets[result.set] = std::move(one);
  }
  return sets;
}

}  // namespace

std::string json_line(const StepMetrics& metrics) {
  Line line;
  line.put("step", metrics.step);  // first: JsonlWriter reads it back without parsing
  if (metrics.trained()) put_training(line, metrics);
  line.put("peak_bytes", metrics.peak_bytes);
  if (metrics.plan_peak_bytes) line.put("plan_peak_bytes", *metrics.plan_peak_bytes);
  line.put("peak_by_category", metrics.peak_by_category);
  line.put("host_bytes", metrics.host_bytes);
  if (metrics.trained()) put_router(line, metrics);
  for (const auto& [name, value] : metrics.operator_figures) line.put_real(name, value);
  if (!metrics.validation.empty()) line.put("validation", validation_sets(line, metrics));
  return line.finish();
}

}  // namespace steppe::metrics
