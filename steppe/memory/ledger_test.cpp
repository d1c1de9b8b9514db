#include "steppe/memory/ledger.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "steppe/memory/timeline_recording.h"

namespace steppe::memory {
namespace {

int64_t sum(const BytesByCategory& bytes) {
  return std::accumulate(bytes.begin(), bytes.end(), int64_t{0});
}

TEST(Category, NamesAreDistinct) {
  std::vector<std::string_view> names;
  for (int i = 0; i < kNumCategories; ++i) {
    const auto name = category_name(static_cast<Category>(i));
    EXPECT_FALSE(name.empty());
    for (auto other : names) EXPECT_NE(name, other);
    names.push_back(name);
  }
  EXPECT_EQ(names.front(), "untagged");
  EXPECT_EQ(names.back(), "control");
}

// Random allocations and releases against a list that is summed anew at each step.
TEST(Ledger, AgreesWithAListOfBlocks) {
  struct Block {
    int64_t bytes;
    Category category;
    Domain domain;
  };
  std::mt19937 random(7);
  std::vector<Block> blocks;
  Ledger ledger;
  std::array<int64_t, kNumDomains> highest{};
  std::array<BytesByCategory, kNumDomains> own_highest{}, at_highest{};
  for (int step = 0; step < 3000; ++step) {
    if (random() % 5 < 3 || blocks.empty()) {
      const Block block{static_cast<int64_t>(random() % 1000 + 1),
                        static_cast<Category>(random() % kNumCategories),
                        static_cast<Domain>(random() % kNumDomains)};
      ledger.allocated(block.bytes, block.category, block.domain);
      blocks.push_back(block);
    } else {
      std::swap(blocks[random() % blocks.size()], blocks.back());
      ledger.released(blocks.back().bytes, blocks.back().category, blocks.back().domain);
      blocks.pop_back();
    }
    if (step == 1000) {
      ledger.reset_peak();
      highest = {};
      own_highest = {};
    }
    std::array<BytesByCategory, kNumDomains> live{};
    for (const Block& block : blocks) {
      live[static_cast<int>(block.domain)][static_cast<int>(block.category)] += block.bytes;
    }
    for (int d = 0; d < kNumDomains; ++d) {
      const auto domain = static_cast<Domain>(d);
      ASSERT_EQ(ledger.live_by_category(domain), live[d]);
      ASSERT_EQ(ledger.live_bytes(domain), sum(live[d]));
      if (sum(live[d]) > highest[d]) {
        highest[d] = sum(live[d]);
        at_highest[d] = live[d];
      }
      for (int c = 0; c < kNumCategories; ++c) own_highest[d][c] = std::max(own_highest[d][c], live[d][c]);
      const Peak peak = ledger.peak(domain);
      ASSERT_EQ(peak.bytes, highest[d]);
      ASSERT_EQ(peak.by_category, at_highest[d]);
      ASSERT_EQ(sum(peak.by_category), peak.bytes);
      ASSERT_EQ(ledger.peak_by_own_category(domain), own_highest[d]);
    }
    ASSERT_EQ(ledger.num_live_blocks(), static_cast<int64_t>(blocks.size()));
  }
  for (const Block& block : blocks) ledger.released(block.bytes, block.category, block.domain);
}

TEST(Ledger, PeakRemembersThePartOfItsMark) {
  Ledger ledger;
  ledger.mark("layer 3 backward");
  ledger.mark_part("chunk 1 of 2");
  ledger.allocated(50, Category::kExpert, Domain::kDevice);
  EXPECT_EQ(ledger.peak().mark, "layer 3 backward, chunk 1 of 2");
  ledger.mark_part("chunk 2 of 2");
  ledger.allocated(10, Category::kExpert, Domain::kDevice);
  ledger.mark_part({});
  EXPECT_EQ(ledger.peak().mark, "layer 3 backward, chunk 2 of 2");
  ledger.allocated(10, Category::kExpert, Domain::kDevice);
  EXPECT_EQ(ledger.peak().mark, "layer 3 backward");
  ledger.mark_part("chunk 1 of 2");
  ledger.mark("layer 2 backward");
  ledger.allocated(10, Category::kExpert, Domain::kDevice);
  EXPECT_EQ(ledger.peak().mark, "layer 2 backward");
  for (const int64_t bytes : {50, 10, 10, 10}) ledger.released(bytes, Category::kExpert, Domain::kDevice);
}

TEST(Ledger, PeakRemembersItsMark) {
  Ledger ledger;
  ledger.mark("forward");
  ledger.allocated(50, Category::kExpert, Domain::kDevice);
  ledger.allocated(50, Category::kExpert, Domain::kDevice);
  EXPECT_EQ(ledger.peak().mark, "forward");
  ledger.mark("backward");
  ledger.released(50, Category::kExpert, Domain::kDevice);
  ledger.allocated(20, Category::kGrads, Domain::kDevice);
  EXPECT_EQ(ledger.peak().mark, "forward");
  EXPECT_EQ(ledger.peak().bytes, 100);
  ledger.mark("optimizer");
  ledger.allocated(70, Category::kOptimizer, Domain::kDevice);
  ledger.mark("end");
  EXPECT_EQ(ledger.peak().mark, "optimizer");
  EXPECT_EQ(ledger.peak().bytes, 140);
  ledger.reset_peak();
  EXPECT_EQ(ledger.peak().mark, "end");
  EXPECT_EQ(ledger.peak().bytes, 140);
  ledger.released(70, Category::kOptimizer, Domain::kDevice);
  ledger.released(20, Category::kGrads, Domain::kDevice);
  ledger.released(50, Category::kExpert, Domain::kDevice);
}

TEST(Ledger, ZeroBytesAreNoBlock) {
  Ledger ledger;
  ledger.allocated(0, Category::kBatch, Domain::kHost);
  EXPECT_EQ(ledger.num_allocations(), 0);
  ledger.released(0, Category::kBatch, Domain::kHost);
  EXPECT_EQ(ledger.num_live_blocks(), 0);
}

TEST(Ledger, TimelineAndItsJson) {
  Ledger ledger;
  ledger.allocated(8, Category::kWeights, Domain::kDevice);
  ledger.start_timeline();
  ledger.mark("layer \"0\"");
  ledger.allocated(100, Category::kExpert, Domain::kDevice);
  ledger.allocated(30, Category::kBoundary, Domain::kHost);
  ledger.mark("end");
  ledger.released(100, Category::kExpert, Domain::kDevice);
  const Timeline timeline = ledger.stop_timeline();
  ledger.released(30, Category::kBoundary, Domain::kHost);
  ledger.released(8, Category::kWeights, Domain::kDevice);

  ASSERT_EQ(timeline.events.size(), 5u);
  EXPECT_EQ(timeline.events[1], (Event{100, Category::kExpert, Domain::kDevice, -1, 108}));
  EXPECT_EQ(timeline.events[3], (Event{0, Category::kUntagged, Domain::kDevice, 1, 108}));
  EXPECT_EQ(timeline.marks, (std::vector<std::string>{"layer \"0\"", "end"}));

  const auto json = nlohmann::json::parse(timeline.to_json());
  ASSERT_EQ(json["events"].size(), 3u);
  EXPECT_EQ(json["events"][1][0], 30);
  EXPECT_EQ(json["categories"][json["events"][1][1].get<size_t>()], "boundary");
  EXPECT_EQ(json["domains"][json["events"][1][2].get<size_t>()], "host");
  EXPECT_EQ(json["events"][2], nlohmann::json({-100, static_cast<int>(Category::kExpert), 0, 8}));
  EXPECT_EQ(json["marks"], nlohmann::json::parse(R"([[0, "layer \"0\""], [2, "end"]])"));
  EXPECT_TRUE(ledger.stop_timeline().events.empty());
}

// What was alive at the start and every event after it give what is alive at the end.
TEST(TimelineRecording, StartAndEventsAddUp) {
  Ledger ledger;
  ledger.allocated(8, Category::kWeights, Domain::kDevice);
  ledger.allocated(5, Category::kBoundary, Domain::kHost);
  { const TimelineRecording dropped(ledger); }
  TimelineRecording recording(ledger);
  ledger.mark("forward");
  ledger.allocated(100, Category::kExpert, Domain::kDevice);
  ledger.released(8, Category::kWeights, Domain::kDevice);
  const auto json = nlohmann::json::parse(recording.finish(3, 1));
  EXPECT_EQ(json["step"], 3);
  EXPECT_EQ(json["rank"], 1);
  EXPECT_EQ(json["marks"], nlohmann::json::parse(R"([[0, "forward"]])"));
  auto live = json["start"].get<std::vector<std::vector<int64_t>>>();
  for (const auto& event : json["events"])
    live[event[2].get<size_t>()][event[1].get<size_t>()] += event[0].get<int64_t>();
  for (int d = 0; d < kNumDomains; ++d) {
    const auto now = ledger.live_by_category(static_cast<Domain>(d));
    EXPECT_EQ(live[d], std::vector<int64_t>(now.begin(), now.end()));
  }
  ledger.released(100, Category::kExpert, Domain::kDevice);
  ledger.released(5, Category::kBoundary, Domain::kHost);
}

TEST(Ledger, ManyThreadsLoseNothing) {
  constexpr int kThreads = 8, kRounds = 20000;
  Ledger ledger;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&ledger, t] {
      const auto category = static_cast<Category>(t);
      for (int i = 0; i < kRounds; ++i) {
        ledger.allocated(i % 97 + 1, category, Domain::kDevice);
        if (i % 100 != 0) ledger.released(i % 97 + 1, category, Domain::kDevice);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  int64_t kept = 0;
  for (int i = 0; i < kRounds; i += 100) kept += i % 97 + 1;
  EXPECT_EQ(ledger.num_allocations(), int64_t{kThreads} * kRounds);
  EXPECT_EQ(ledger.live_bytes(), kThreads * kept);
  EXPECT_EQ(sum(ledger.peak().by_category), ledger.peak().bytes);
  EXPECT_LE(ledger.peak().bytes, kThreads * (kept + 97));
  for (int t = 0; t < kThreads; ++t) {
    EXPECT_EQ(ledger.live_by_category()[t], kept);
    for (int i = 0; i < kRounds; i += 100)
      ledger.released(i % 97 + 1, static_cast<Category>(t), Domain::kDevice);
  }
  EXPECT_EQ(ledger.num_live_blocks(), 0);
}

TEST(LedgerDeathTest, DestroyedBeforeItsBlocks) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        Ledger ledger;
        ledger.allocated(12, Category::kRouting, Domain::kHost);
      },
      "destroyed while 1 blocks .* host/routing=12 B");
}

}  // namespace
}  // namespace steppe::memory
