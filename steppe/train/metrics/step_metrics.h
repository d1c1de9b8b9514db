// The figures of one optimizer step, as the trainer hands them to every place that shows or keeps them.
// Counts and rates are of the whole job, memory is of the rank that reports (the trainer picks the fullest).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace steppe::metrics {

// [MoE layer][expert]: (token, choice) pairs routed to each expert during the step, over all ranks and
// micro-batches, each token counted once.
using ExpertLoad = std::vector<std::vector<int64_t>>;

struct ValidationResult {
  std::string set;     // name of the validation set
  double loss = 0;     // nats per target token
  int64_t tokens = 0;  // target tokens

  double perplexity() const;
};

// How evenly the router spreads tokens; see moe_health.h for the definitions.
struct MoeHealth {
  double load_max_over_mean = 0;
  double load_cv = 0;
  double dead_expert_frac = 0;
  double router_entropy = 0;
};

// Step 0 stands for the state before the first step: only its validation results and memory are meaningful,
// and `trained()` is false.
struct StepMetrics {
  int64_t step = 0;

  double loss = 0;            // nats per target token, mean over the global batch
  double grad_norm = 0;       // before clipping
  double lr = 0;              // the rate this step was taken with
  int64_t tokens = 0;         // input tokens since the run began
  int64_t target_tokens = 0;  // the loss's denominator at this step
  int num_ranks = 1;
  double tokens_per_s = 0;
  double tflops = 0;          // model floating-point operations, 1e12 per second
  std::optional<double> mfu;  // fraction of the hardware's peak, where that is known
  double step_s = 0;
  double data_wait_s = 0;  // part of step_s
  double time_left_s = 0;  // until the run's last step

  int64_t peak_bytes = 0;                           // device domain, since the step began
  int peak_rank = 0;                                // whose it is
  std::map<std::string, int64_t> peak_by_category;  // who made up the peak; sums to peak_bytes
  std::optional<int64_t> plan_peak_bytes;
  int64_t host_bytes = 0;  // host domain, at its peak

  std::optional<MoeHealth> moe;        // absent from models without experts
  std::optional<double> bias_max_abs;  // absent where no expert bias is trained
  ExpertLoad expert_load;              // empty: not reported

  // Figures that operators add, under the full name they are shown by, such as "moe/helpers_max".
  std::map<std::string, double> operator_figures;

  std::vector<ValidationResult> validation;  // sets evaluated after this step

  bool trained() const { return step > 0; }
};

}  // namespace steppe::metrics
