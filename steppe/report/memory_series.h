// What a chart of a step's memory needs of its timeline: live bytes by category at a few thousand instants,
// of which one is the peak; the phases; who made up the peak.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "steppe/report/timeline_file.h"

namespace steppe::report {

// Blocks of one size and category that are alive at the peak. What was alive before the step is one such
// line per category: its blocks are unknown.
struct PeakBlocks {
  int32_t category = 0;
  int64_t bytes = 0;  // of each
  int64_t count = 1;
  bool before_step = false;
  std::string phase;  // that allocated them; empty: several did
};

struct Phase {
  std::string text;
  int64_t event = 0;       // number of events before it
  int64_t peak_bytes = 0;  // the most alive while it lasted
};

struct MemorySeries {
  std::string domain;
  std::vector<std::string> categories;      // those that ever hold anything, in the timeline's order
  std::vector<int64_t> events;              // number of events before each instant
  std::vector<std::vector<int64_t>> bytes;  // [category][instant]
  int64_t num_events = 0;                   // of all domains
  std::vector<Phase> phases;

  int64_t peak_bytes = 0;
  int64_t peak_event = 0;  // number of events before the first instant of the peak
  std::string peak_phase;
  std::vector<int64_t> peak_by_category;
  std::vector<PeakBlocks> peak_blocks;  // largest first; `category` indexes `categories`
};

// At most about twice `max_instants` instants: of each stretch of the timeline the lowest and the highest, in
// their order, so that no peak is lost however many events there are.
MemorySeries memory_series(const TimelineFile& timeline, int32_t domain, int64_t max_instants = 1500);

}  // namespace steppe::report
