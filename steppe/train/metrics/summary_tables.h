// What is printed between steps and at the end of a run, as text for a fixed-width font, without a final
// newline.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "steppe/train/metrics/step_metrics.h"

namespace steppe::metrics {

// Who made up the peak: a row per category that holds bytes, largest first, with its share; their total; and
// the planned peak, if there is one, as a share of the total. Throws ValueError for a negative size.
//
//   category     peak   share
//   weights   1.50GiB   75.0%
//   grads      512MiB   25.0%
//   total     2.00GiB  100.0%
std::string peak_table(const std::map<std::string, int64_t>& peak_by_category,
                       std::optional<int64_t> plan_peak_bytes = std::nullopt);

// A line per validation set, columns aligned.
//
//   validation  step 500  wiki  loss 2.3456  ppl 10.44  131072 tokens
std::string validation_lines(int64_t step, const std::vector<ValidationResult>& results);

}  // namespace steppe::metrics
