#include "steppe/report/memory_series.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

namespace steppe::report {
namespace {

int64_t sum(const std::vector<int64_t>& bytes) {
  return std::accumulate(bytes.begin(), bytes.end(), int64_t{0});
}

// Totals after 0, 1, … all events; events of other domains repeat the one before.
std::vector<int64_t> totals_of(const TimelineFile& timeline, int32_t domain) {
  std::vector<int64_t> totals = {sum(timeline.start[static_cast<size_t>(domain)])};
  totals.reserve(timeline.events.size() + 1);
  for (const auto& event : timeline.events) {
    totals.push_back(totals.back() + (event.domain == domain ? event.bytes : 0));
  }
  return totals;
}

// The lowest and the highest of each stretch, and the last: rising, without repeats.
std::vector<int64_t> chosen_instants(const std::vector<int64_t>& totals, int64_t max_instants) {
  const auto num = std::ssize(totals);
  const int64_t stretch = (num + max_instants - 1) / max_instants;
  std::vector<int64_t> chosen;
  const auto choose = [&](int64_t instant) {
    if (chosen.empty() || chosen.back() < instant) chosen.push_back(instant);
  };
  for (int64_t begin = 0; begin < num; begin += stretch) {
    const auto first = totals.begin() + begin, last = totals.begin() + std::min(num, begin + stretch);
    const int64_t lowest = std::min_element(first, last) - totals.begin();
    const int64_t highest = std::max_element(first, last) - totals.begin();
    choose(std::min(lowest, highest));
    choose(std::max(lowest, highest));
  }
  choose(num - 1);
  return chosen;
}

std::vector<Phase> phases_of(const TimelineFile& timeline, const std::vector<int64_t>& totals) {
  std::vector<Phase> phases;
  const auto add = [&](std::string text, int64_t begin, int64_t end) {
    const auto highest = std::max_element(totals.begin() + begin, totals.begin() + end + 1);
    phases.push_back({std::move(text), begin, *highest});
  };
  const auto& marks = timeline.marks;
  const auto num_events = std::ssize(timeline.events);
  const int64_t first = marks.empty() ? num_events : marks.front().event;
  if (first > 0) add("", 0, first);
  for (size_t m = 0; m < marks.size(); ++m) {
    add(marks[m].text, marks[m].event, m + 1 < marks.size() ? marks[m + 1].event : num_events);
  }
  return phases;
}

// Releases are matched to the newest block of their size and category; which of several equal blocks it was
// makes no difference to the sum. One that matches none was alive before the step.
std::vector<PeakBlocks> blocks_at(const TimelineFile& timeline, int32_t domain, int64_t instant,
                                  const std::vector<int64_t>& by_category) {
  std::map<std::pair<int32_t, int64_t>, std::vector<const std::string*>> alive;  // phase of each block
  for (int64_t i = 0; i < instant; ++i) {
    const auto& event = timeline.events[static_cast<size_t>(i)];
    if (event.domain != domain) continue;
    auto& blocks = alive[{event.category, std::abs(event.bytes)}];
    if (event.bytes > 0) {
      blocks.push_back(&timeline.phase_of(i));
    } else if (!blocks.empty()) {
      blocks.pop_back();
    }
  }
  std::vector<PeakBlocks> found;
  auto before = by_category;
  for (const auto& [key, blocks] : alive) {
    if (blocks.empty()) continue;
    const auto& [category, bytes] = key;
    const auto count = std::ssize(blocks);
    const bool one_phase = std::all_of(blocks.begin(), blocks.end(),
                                       [&](const std::string* phase) { return *phase == *blocks.front(); });
    found.push_back({category, bytes, count, false, one_phase ? *blocks.front() : ""});
    before[static_cast<size_t>(category)] -= bytes * count;
  }
  for (size_t c = 0; c < before.size(); ++c) {
    if (before[c] > 0) found.push_back({static_cast<int32_t>(c), before[c], 1, true, ""});
  }
  std::stable_sort(found.begin(), found.end(), [](const PeakBlocks& a, const PeakBlocks& b) {
    return a.bytes * a.count > b.bytes * b.count;
  });
  return found;
}

// Drops the categories that never hold anything.
void keep_used(MemorySeries& series, const std::vector<std::string>& names) {
  std::vector<int32_t> position(names.size(), -1);
  std::vector<std::vector<int64_t>> kept_bytes;
  std::vector<int64_t> kept_peak;
  for (size_t c = 0; c < names.size(); ++c) {
    const auto& bytes = series.bytes[c];
    const bool used = std::any_of(bytes.begin(), bytes.end(), [](int64_t b) { return b != 0; });
    if (!used && series.peak_by_category[c] == 0) continue;
    position[c] = static_cast<int32_t>(series.categories.size());
    series.categories.push_back(names[c]);
    kept_bytes.push_back(bytes);
    kept_peak.push_back(series.peak_by_category[c]);
  }
  series.bytes = std::move(kept_bytes);
  series.peak_by_category = std::move(kept_peak);
  for (auto& blocks : series.peak_blocks) blocks.category = position[static_cast<size_t>(blocks.category)];
}

}  // namespace

MemorySeries memory_series(const TimelineFile& timeline, int32_t domain, int64_t max_instants) {
  const auto totals = totals_of(timeline, domain);
  MemorySeries series;
  series.domain = timeline.domains[static_cast<size_t>(domain)];
  series.num_events = std::ssize(timeline.events);
  series.phases = phases_of(timeline, totals);
  series.events = chosen_instants(totals, max_instants);
  series.peak_event = std::max_element(totals.begin(), totals.end()) - totals.begin();
  series.peak_bytes = totals[static_cast<size_t>(series.peak_event)];
  series.peak_phase = timeline.phase_of(std::max<int64_t>(0, series.peak_event - 1));

  auto now = timeline.start[static_cast<size_t>(domain)];
  series.bytes.resize(now.size());
  size_t next = 0;
  for (int64_t instant = 0; instant <= series.num_events; ++instant) {
    if (instant > 0) {
      const auto& event = timeline.events[static_cast<size_t>(instant - 1)];
      if (event.domain == domain) now[static_cast<size_t>(event.category)] += event.bytes;
    }
    if (instant == series.peak_event) series.peak_by_category = now;
    if (next == series.events.size() || series.events[next] != instant) continue;
    for (size_t c = 0; c < now.size(); ++c) series.bytes[c].push_back(now[c]);
    ++next;
  }
  series.peak_blocks = blocks_at(timeline, domain, series.peak_event, series.peak_by_category);
  keep_used(series, timeline.categories);
  return series;
}

}  // namespace steppe::report
