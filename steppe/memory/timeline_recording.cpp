#include "steppe/memory/timeline_recording.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace steppe::memory {

TimelineRecording::TimelineRecording(Ledger& ledger) : ledger_(ledger) {
  for (int d = 0; d < kNumDomains; ++d) start_[d] = ledger.live_by_category(static_cast<Domain>(d));
  ledger.start_timeline();
}

TimelineRecording::~TimelineRecording() {
  if (!finished_) ledger_.stop_timeline();
}

std::string TimelineRecording::finish(int64_t step, int rank) {
  finished_ = true;
  std::string start;
  for (const auto& bytes : start_)
    start += fmt::format("{}[{}]", start.empty() ? "" : ",", fmt::join(bytes, ","));
  const std::string object = ledger_.stop_timeline().to_json();
  return fmt::format(R"({{"step":{},"rank":{},"start":[{}],)", step, rank, start) + object.substr(1);
}

}  // namespace steppe::memory
