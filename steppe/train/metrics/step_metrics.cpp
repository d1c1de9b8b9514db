#include "steppe/train/metrics/step_metrics.h"

#include <cmath>

namespace steppe::metrics {

double ValidationResult::perplexity() const {
  return std::exp(loss);
}

}  // namespace steppe::metrics
