#include "steppe/report/timeline_file.h"

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>

#include "steppe/base/error.h"

namespace steppe::report {
namespace {

using nlohmann::json;

// Takes each event as it is parsed and drops it from the tree: a step may have a million, and the tree of one
// is ten times its size.
class EventReader {
 public:
  std::vector<TimelineEvent> events;
  std::vector<int64_t> live;  // of the domain, after each event, as written

  bool operator()(int depth, json::parse_event_t what, json& value) {
    if (what == json::parse_event_t::key && depth == 1) in_events_ = value == "events";
    if (!in_events_ || depth != 2 || what != json::parse_event_t::array_end) return true;
    const bool numbers =
        value.size() == 4 && std::all_of(value.begin(), value.end(),
                                         [](const json& element) { return element.is_number_integer(); });
    if (numbers) {
      events.push_back({value[0], value[1], value[2]});
      live.push_back(value[3]);
    }
    return !numbers;  // what is no event stays, and is found afterwards
  }

 private:
  bool in_events_ = false;
};

std::vector<TimelineMark> marks_of(const json& list) {
  std::vector<TimelineMark> marks;
  for (const auto& mark : list) marks.push_back({mark.at(0), mark.at(1)});
  return marks;
}

void check_indices(const TimelineFile& timeline, const std::string& place) {
  for (size_t i = 0; i < timeline.events.size(); ++i) {
    const auto& event = timeline.events[i];
    STEPPE_CHECK(event.category >= 0 && event.category < std::ssize(timeline.categories) &&
                     event.domain >= 0 && event.domain < std::ssize(timeline.domains),
                 "[report] {}: event {} has category {} of {} and domain {} of {}", place, i, event.category,
                 timeline.categories.size(), event.domain, timeline.domains.size());
  }
  int64_t last = 0;
  for (const auto& mark : timeline.marks) {
    STEPPE_CHECK(mark.event >= last && mark.event <= std::ssize(timeline.events),
                 "[report] {}: the mark \"{}\" stands at event {}, which must be from {} to {}", place,
                 mark.text, mark.event, last, timeline.events.size());
    last = mark.event;
  }
}

// The total follows from the first event of a domain. Of it, a category held at least what its events take
// away and did not bring; whose the rest was is lost.
void assume_start(TimelineFile& timeline, const std::vector<int64_t>& live) {
  const std::vector<int64_t> nothing(timeline.categories.size() + 1);
  timeline.categories.emplace_back(kBefore);
  timeline.start.assign(timeline.domains.size(), nothing);
  auto now = timeline.start;
  std::vector<std::optional<int64_t>> total(timeline.domains.size());
  for (size_t i = 0; i < timeline.events.size(); ++i) {
    const auto& event = timeline.events[i];
    const auto domain = static_cast<size_t>(event.domain), category = static_cast<size_t>(event.category);
    if (!total[domain]) total[domain] = live[i] - event.bytes;
    now[domain][category] += event.bytes;
    auto& held = timeline.start[domain][category];
    held = std::max(held, -now[domain][category]);
  }
  for (size_t d = 0; d < total.size(); ++d) {
    auto& start = timeline.start[d];
    start.back() = total[d].value_or(0) - std::accumulate(start.begin(), start.end(), int64_t{0});
  }
}

void check_live(const TimelineFile& timeline, const std::vector<int64_t>& live, const std::string& place) {
  auto by_category = timeline.start;
  std::vector<int64_t> total;
  for (const auto& start : timeline.start)
    total.push_back(std::accumulate(start.begin(), start.end(), int64_t{0}));
  for (size_t i = 0; i < timeline.events.size(); ++i) {
    const auto& event = timeline.events[i];
    const auto domain = static_cast<size_t>(event.domain), category = static_cast<size_t>(event.category);
    total[domain] += event.bytes;
    by_category[domain][category] += event.bytes;
    STEPPE_CHECK(total[domain] == live[i],
                 "[report] {}: event {} leaves {} bytes alive by its own account, {} by all events before it",
                 place, i, live[i], total[domain]);
    STEPPE_CHECK(by_category[domain][category] >= 0,
                 "[report] {}: event {} releases {} bytes of {}, which held {}", place, i, -event.bytes,
                 timeline.categories[category], by_category[domain][category] - event.bytes);
  }
}

}  // namespace

const std::string& TimelineFile::phase_of(int64_t event) const {
  static const std::string none;
  const auto after = std::upper_bound(marks.begin(), marks.end(), event,
                                      [](int64_t at, const TimelineMark& mark) { return at < mark.event; });
  return after == marks.begin() ? none : std::prev(after)->text;
}

TimelineFile read_timeline(const std::filesystem::path& path) {
  const std::string place = path.string();
  std::ifstream file(path, std::ios::binary);
  STEPPE_CHECK_VALUE(file.is_open(), "[report] cannot read {}", place);
  EventReader reader;
  TimelineFile timeline;
  try {
    const json object = json::parse(file, std::ref(reader));
    timeline.categories = object.at("categories");
    timeline.domains = object.at("domains");
    timeline.marks = marks_of(object.at("marks"));
    STEPPE_CHECK(object.at("events").empty(),
                 "[report] {}: events must be [bytes, category, domain, live], got {}", place,
                 object["events"][0].dump());
    timeline.step = object.value("step", int64_t{-1});
    timeline.rank = object.value("rank", int64_t{-1});
    timeline.start = object.value("start", timeline.start);
  } catch (const json::parse_error& error) {
    throw RuntimeFailure(
        fmt::format("[report] {} is no JSON from byte {} on: it was cut, or damaged", place, error.byte));
  } catch (const json::exception& error) {
    throw RuntimeFailure(fmt::format("[report] {} is not a timeline: {}", place, error.what()));
  }
  timeline.events = std::move(reader.events);
  check_indices(timeline, place);
  if (timeline.start.empty()) assume_start(timeline, reader.live);
  const bool shaped = timeline.start.size() == timeline.domains.size() &&
                      std::all_of(timeline.start.begin(), timeline.start.end(), [&](const auto& bytes) {
                        return bytes.size() == timeline.categories.size();
                      });
  STEPPE_CHECK(shaped, "[report] {}: start must be {} lists of {} numbers", place, timeline.domains.size(),
               timeline.categories.size());
  check_live(timeline, reader.live, place);
  return timeline;
}

}  // namespace steppe::report
