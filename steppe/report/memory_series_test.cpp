#include "steppe/report/memory_series.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <numeric>
#include <random>

#include "steppe/base/error.h"
#include "steppe/base/temporary_folder.h"

namespace steppe::report {
namespace {

TimelineFile random_timeline(uint32_t seed, int num_events) {
  std::mt19937 random(seed);
  TimelineFile timeline;
  timeline.categories = {"weights", "expert", "vocab", "never"};
  timeline.domains = {"device", "host"};
  timeline.start = {{1000, 0, 50, 0}, {0, 0, 7, 0}};
  std::vector<TimelineEvent> alive;
  for (int i = 0; i < num_events; ++i) {
    if (i % 100 == 3) timeline.marks.push_back({i, "phase " + std::to_string(i)});
    if (random() % 2 == 0 || alive.empty()) {
      alive.push_back({static_cast<int64_t>(random() % 5 + 1) * 16, static_cast<int32_t>(random() % 3),
                       static_cast<int32_t>(random() % 2)});
      timeline.events.push_back(alive.back());
    } else {
      std::swap(alive[random() % alive.size()], alive.back());
      timeline.events.push_back({-alive.back().bytes, alive.back().category, alive.back().domain});
      alive.pop_back();
    }
  }
  return timeline;
}

// Live bytes of a domain after `num` events, by adding them up.
std::vector<int64_t> live_after(const TimelineFile& timeline, int32_t domain, int64_t num) {
  auto live = timeline.start[domain];
  for (int64_t i = 0; i < num; ++i) {
    if (timeline.events[i].domain == domain) live[timeline.events[i].category] += timeline.events[i].bytes;
  }
  return live;
}

int64_t sum(const std::vector<int64_t>& bytes) {
  return std::accumulate(bytes.begin(), bytes.end(), int64_t{0});
}

TEST(MemorySeries, EveryInstantIsWhatTheEventsAddUpTo) {
  for (const int num_events : {0, 1, 7, 1000}) {
    for (const int32_t domain : {0, 1}) {
      const auto timeline = random_timeline(num_events, num_events);
      const auto series = memory_series(timeline, domain, 50);
      ASSERT_FALSE(series.events.empty());
      EXPECT_LE(series.events.size(), 101u);
      EXPECT_TRUE(std::is_sorted(series.events.begin(), series.events.end(), std::less_equal<>()));
      EXPECT_EQ(series.events.back(), num_events);
      for (size_t i = 0; i < series.events.size(); ++i) {
        const auto live = live_after(timeline, domain, series.events[i]);
        for (size_t c = 0; c < series.categories.size(); ++c) {
          const auto index =
              std::find(timeline.categories.begin(), timeline.categories.end(), series.categories[c]) -
              timeline.categories.begin();
          EXPECT_EQ(series.bytes[c][i], live[index]) << series.categories[c] << " after " << series.events[i];
        }
      }
      EXPECT_EQ(std::count(series.categories.begin(), series.categories.end(), "never"), 0);
    }
  }
}

// Many events, few instants: the peak is one of them, and the first such.
TEST(MemorySeries, ThePeakIsNeverLost) {
  for (uint32_t seed = 0; seed < 20; ++seed) {
    const auto timeline = random_timeline(seed, 997);
    const auto series = memory_series(timeline, 0, 10);
    int64_t highest = 0, at = 0;
    for (int64_t i = 0; i <= 997; ++i) {
      const int64_t total = sum(live_after(timeline, 0, i));
      if (total > highest) highest = total, at = i;
    }
    EXPECT_EQ(series.peak_bytes, highest);
    EXPECT_EQ(series.peak_event, at);
    EXPECT_EQ(sum(series.peak_by_category), highest);
    EXPECT_NE(std::find(series.events.begin(), series.events.end(), at), series.events.end());
    int64_t highest_phase = 0;
    for (const auto& phase : series.phases) highest_phase = std::max(highest_phase, phase.peak_bytes);
    EXPECT_EQ(highest_phase, highest);
  }
}

TEST(MemorySeries, BlocksOfThePeakAddUpByCategory) {
  for (uint32_t seed = 0; seed < 20; ++seed) {
    const auto series = memory_series(random_timeline(seed, 500), 0);
    auto left = series.peak_by_category;
    for (const auto& block : series.peak_blocks) left[block.category] -= block.bytes * block.count;
    EXPECT_EQ(left, std::vector<int64_t>(left.size()));
  }
}

TEST(MemorySeries, SaysWhichPhaseAllocatedABlock) {
  TimelineFile timeline;
  timeline.categories = {"weights", "expert"};
  timeline.domains = {"device"};
  timeline.start = {{64, 0}};
  timeline.events = {{10, 1, 0}, {10, 1, 0}, {-10, 1, 0}, {-64, 0, 0}, {100, 1, 0}};
  timeline.marks = {{0, "layer 0 forward"}, {4, "layer 1 forward"}};
  const auto series = memory_series(timeline, 0);
  EXPECT_EQ(series.peak_bytes, 110);
  EXPECT_EQ(series.peak_phase, "layer 1 forward");
  ASSERT_EQ(series.peak_blocks.size(), 2u);
  EXPECT_EQ(series.peak_blocks[0].phase, "layer 1 forward");
  EXPECT_EQ(series.peak_blocks[1].phase, "layer 0 forward");
  EXPECT_EQ(series.peak_blocks[1].bytes, 10);
  ASSERT_EQ(series.phases.size(), 2u);
  EXPECT_EQ(series.phases[0].peak_bytes, 84);
}

class TimelineText : public ::testing::Test {
 protected:
  TimelineFile read(const std::string& text) {
    std::ofstream(folder_ / "t.json") << text;
    return read_timeline(folder_ / "t.json");
  }
  void expect_refused(const std::string& text, const std::string& part) {
    try {
      read(text);
      ADD_FAILURE() << "taken: " << text;
    } catch (const RuntimeFailure& error) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find("t.json"), std::string::npos) << error.what();
    }
  }
  TemporaryFolder folder_;
};

constexpr const char* kGood =
    R"({"step":4,"rank":1,"start":[[8,0],[0,0]],"categories":["weights","expert"],"domains":["device","host"],)"
    R"("events":[[10,1,0,18],[5,1,1,5],[-8,0,0,10]],"marks":[[0,"forward"],[2,"backward"]]})";

TEST_F(TimelineText, IsReadAsItWasWritten) {
  const auto timeline = read(kGood);
  EXPECT_EQ(timeline.step, 4);
  EXPECT_EQ(timeline.rank, 1);
  ASSERT_EQ(timeline.events.size(), 3u);
  EXPECT_EQ(timeline.events[2].bytes, -8);
  EXPECT_EQ(timeline.events[1].domain, 1);
  EXPECT_EQ(timeline.phase_of(1), "forward");
  EXPECT_EQ(timeline.phase_of(2), "backward");
  EXPECT_EQ(timeline.start[0][0], 8);
}

TEST_F(TimelineText, WithoutAStartTheTotalStillHolds) {
  const auto timeline = read(R"({"categories":["weights","expert"],"domains":["device","host"],)"
                             R"("events":[[10,1,0,118],[-8,0,0,110]],"marks":[]})");
  EXPECT_EQ(timeline.categories.back(), kBefore);
  EXPECT_EQ(timeline.start[0], (std::vector<int64_t>{8, 0, 100}));
  EXPECT_EQ(memory_series(timeline, 0).peak_bytes, 118);
}

TEST_F(TimelineText, DamageIsFound) {
  const std::string good = kGood;
  const auto with = [&](const std::string& old, const std::string& fresh) {
    auto text = good;
    return text.replace(text.find(old), old.size(), fresh);
  };
  expect_refused(good.substr(0, good.size() / 2), "is no JSON from byte");
  expect_refused("{}", "is not a timeline");
  expect_refused(with("[10,1,0,18]", "[10,1,0,19]"), "event 0 leaves 19 bytes");
  expect_refused(with("[10,1,0,18],", ""), "event 1");
  expect_refused(with("[5,1,1,5]", "[5,2,1,5]"), "category 2 of 2");
  expect_refused(with("[5,1,1,5]", "[5,1,1]"), "[5,1,1]");
  expect_refused(with("[-8,0,0,10]", "[-8,1,0,10],[-8,1,0,2]"), "releases 8 bytes of expert, which held 2");
  expect_refused(with("[2,\"backward\"]", "[9,\"backward\"]"), "\"backward\"");
  expect_refused(with("[[8,0],[0,0]]", "[[8,0]]"), "start");
}

TEST_F(TimelineText, AMissingFileIsTheCallersMistake) {
  EXPECT_THROW(read_timeline(folder_ / "none.json"), ValueError);
}

}  // namespace
}  // namespace steppe::report
