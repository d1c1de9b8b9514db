#include "steppe/train/metrics/planned_memory.h"

#include <fmt/format.h>

#include <utility>

#include "steppe/base/bytes.h"

namespace steppe::metrics {
namespace {

int64_t bytes_of(const std::map<std::string, int64_t>& categories, const std::string& category) {
  const auto found = categories.find(category);
  return found == categories.end() ? 0 : found->second;
}

// "expert holds 5.12MiB, planned 3.75MiB": the category that grew most. The differences sum to what the peak
// is above the planned one.
std::string what_grew(const PlannedMemory& planned, const StepMetrics& metrics) {
  std::pair<int64_t, std::string> most{INT64_MIN, ""};
  for (const auto& [category, bytes] : metrics.peak_by_category) {
    const std::pair grown(bytes - bytes_of(planned.peak_by_category, category), category);
    if (grown.first > most.first) most = grown;
  }
  return fmt::format("{} holds {}, planned {}", most.second,
                     format_bytes(bytes_of(metrics.peak_by_category, most.second)),
                     format_bytes(bytes_of(planned.peak_by_category, most.second)));
}

}  // namespace

PeakWatch::Remark PeakWatch::step(const StepMetrics& metrics) {
  if (!metrics.trained()) return {};
  const auto peak = fmt::format("step {}: the peak of rank {}, {}", metrics.step, metrics.peak_rank,
                                format_bytes(metrics.peak_bytes));
  const int64_t planned_part = metrics.peak_bytes - planned_.unplanned_bytes;
  if (planned_part > planned_.guaranteed_bytes) {
    if (std::exchange(past_guaranteed_, true)) return {};
    past_expected_ = true;
    return {LogLevel::kWarning,
            fmt::format("{}, passes the {} that the plan guarantees whatever the router does: {}", peak,
                        format_bytes(planned_.guaranteed_bytes), what_grew(planned_, metrics))};
  }
  if (planned_part > planned_.expected_bytes && !std::exchange(past_expected_, true)) {
    return {LogLevel::kInfo,
            fmt::format("{}, passes the {} that the plan expects of {} routing, and keeps within the {} that "
                        "it guarantees: {}",
                        peak, format_bytes(planned_.expected_bytes), planned_.routing_profile,
                        format_bytes(planned_.guaranteed_bytes), what_grew(planned_, metrics))};
  }
  return {};
}

}  // namespace steppe::metrics
