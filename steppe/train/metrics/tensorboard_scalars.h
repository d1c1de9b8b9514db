// The figures of a step under the names TensorBoard groups them by: train/, perf/, memory/, moe/,
// validation/. Rates are per GPU (per rank), sizes in GiB. Per-layer and per-expert figures stay in
// metrics.jsonl.
#pragma once

#include <string>
#include <vector>

#include "steppe/train/metrics/step_metrics.h"

namespace steppe::metrics {

struct Scalar {
  std::string tag;
  float value = 0;
};

std::vector<Scalar> tensorboard_scalars(const StepMetrics& metrics);

}  // namespace steppe::metrics
