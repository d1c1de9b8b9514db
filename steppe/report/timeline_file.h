// The allocations of one step, as a run (profiler.steps) or a plan wrote them: memory/timeline_recording.h
// says what the file holds. "step", "rank" and "start" may be missing; what was alive before is then unknown
// by category, and known in total from the first event.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace steppe::report {

struct TimelineEvent {
  int64_t bytes = 0;  // > 0: allocated, < 0: released
  int32_t category = 0, domain = 0;
};

struct TimelineMark {
  int64_t event = 0;  // number of events before it
  std::string text;   // "layer 3 forward"
};

struct TimelineFile {
  int64_t step = -1, rank = -1;
  std::vector<std::string> categories, domains;
  std::vector<std::vector<int64_t>> start;  // live bytes, [domain][category]
  std::vector<TimelineEvent> events;
  std::vector<TimelineMark> marks;

  // The phase that the event belongs to: the last mark before it; empty before the first.
  const std::string& phase_of(int64_t event) const;
};

// The category that holds what was alive before a recording without "start".
inline constexpr const char* kBefore = "before the recording";

// RuntimeFailure naming the file, and the event, where the text is not a timeline or its live bytes do not
// follow from its events: it was cut or edited.
TimelineFile read_timeline(const std::filesystem::path& path);

}  // namespace steppe::report
