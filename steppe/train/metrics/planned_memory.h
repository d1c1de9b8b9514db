// What the plan said of a run's memory, and where a step's peak passes it.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "steppe/base/log.h"
#include "steppe/train/metrics/step_metrics.h"

namespace steppe::metrics {

// Of the fullest rank, on the device.
struct PlannedMemory {
  int64_t peak_bytes = 0;                           // of the dry run
  int64_t expected_bytes = 0;                       // the budget for the routing profile
  int64_t guaranteed_bytes = 0;                     // the budget that no router can exceed
  std::map<std::string, int64_t> peak_by_category;  // of the dry run; sums to peak_bytes
  std::string routing_profile;
  int64_t unplanned_bytes = 0;  // that libraries may take beside: passing a figure by less is nothing to tell
};

// What to say of a step whose peak passes a figure of the plan, each figure once a run.
class PeakWatch {
 public:
  explicit PeakWatch(PlannedMemory planned) : planned_(std::move(planned)) {}

  struct Remark {
    LogLevel level = LogLevel::kInfo;
    std::string text;  // empty: nothing
  };
  // A warning past the guarantee; past what is expected a word, since a router that is less even than the
  // routing profile may do so.
  Remark step(const StepMetrics& metrics);

 private:
  PlannedMemory planned_;
  bool past_expected_ = false, past_guaranteed_ = false;
};

}  // namespace steppe::metrics
