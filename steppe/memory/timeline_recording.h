// Everything that one ledger booked during a stretch of the program, together with what was alive as it
// began: enough to know who held how much at every instant. One recording of a ledger at a time.
#pragma once

#include <array>
#include <string>

#include "steppe/memory/ledger.h"

namespace steppe::memory {

class TimelineRecording {
 public:
  explicit TimelineRecording(Ledger& ledger);
  ~TimelineRecording();  // a recording that was not finished is dropped
  TimelineRecording(const TimelineRecording&) = delete;
  TimelineRecording& operator=(const TimelineRecording&) = delete;

  // Ends it: the object of Timeline::to_json with "step", "rank", and "start": live bytes at the beginning as
  // [domain][category].
  std::string finish(int64_t step, int rank);

 private:
  Ledger& ledger_;
  std::array<BytesByCategory, kNumDomains> start_;
  bool finished_ = false;
};

}  // namespace steppe::memory
