#include "steppe/memory/host_arena.h"

#include <ATen/Context.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "steppe/base/error.h"
#include "steppe/memory/scope.h"

namespace steppe::memory {
namespace {

HostArenaOptions options(at::Device device = at::kCPU) {
  return {.name = "test", .category = Category::kBoundary, .device = device};
}

std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const ValueError& error) {
    return error.what();
  }
  return "no error";
}

TEST(HostArena, IsBookedOnceInItsExactSize) {
  for (const auto device : {at::kCPU, at::kMeta}) {
    Ledger ledger;
    const LedgerBinding binding(ledger);
    {
      HostArena arena(1000, options(device));
      EXPECT_EQ(ledger.live_bytes(Domain::kHost), 1000);
      EXPECT_EQ(ledger.live_by_category(Domain::kHost)[static_cast<int>(Category::kBoundary)], 1000);
      const auto range = arena.take(100);
      const auto tensor = arena.tensor(range, {5, 5}, at::kFloat);
      EXPECT_EQ(ledger.live_bytes(Domain::kHost), 1000);
      EXPECT_EQ(ledger.live_bytes(Domain::kDevice), 0);
      EXPECT_EQ(ledger.num_allocations(), 1);
      arena.give_back(range);
    }
    EXPECT_EQ(ledger.num_live_blocks(), 0);
  }
}

TEST(HostArena, TensorsLieInTheirRange) {
  HostArena arena(4096, options());
  const auto a = arena.take(40), b = arena.take(128), c = arena.take(0);
  EXPECT_EQ(a.bytes, 64);
  EXPECT_EQ(b.offset, 64);
  EXPECT_EQ(c.bytes, 0);
  const auto values = at::randn({4, 8});
  const auto tensor = arena.tensor(b, {4, 8}, at::kFloat);
  tensor.copy_(values);
  EXPECT_EQ(tensor.data_ptr(), arena.data(b));
  EXPECT_EQ(reinterpret_cast<uintptr_t>(arena.data(b)) % HostArena::kAlignment, 0u);
  EXPECT_TRUE(at::equal(arena.tensor(b, {4, 8}, at::kFloat), values));
  EXPECT_EQ(arena.tensor(c, {0, 8}, at::kFloat).numel(), 0);
  EXPECT_EQ(message_of([&] {
              arena.tensor(a, {4, 8}, at::kFloat);
            }),
            "[host_arena] test: a tensor of 128 bytes must fit into a range of 64");
}

TEST(HostArena, OnMetaThereIsNoMemory) {
  HostArena arena(int64_t{1} << 50, options(at::kMeta));
  const auto range = arena.take(int64_t{1} << 49);
  EXPECT_EQ(arena.data(range), nullptr);
  EXPECT_TRUE(arena.tensor(range, {1 << 20, 4}, at::kBFloat16).is_meta());
}

TEST(HostArena, PastItsSizeItSaysWhoAndHowMuch) {
  HostArena arena(256, options());
  arena.take(100);
  EXPECT_TRUE(arena.has_room_for(128));
  EXPECT_FALSE(arena.has_room_for(129));
  EXPECT_EQ(message_of([&] { arena.take(129); }),
            "[host_arena] test: 192 bytes must fit into an arena of 256, of which 128 are in use");
  EXPECT_EQ(message_of([] { HostArena(-1, options()); }),
            "[host_arena] test: bytes must be at least 0, got -1");
  HostArena none(0, options());
  EXPECT_TRUE(none.has_room_for(0));
  EXPECT_FALSE(none.has_room_for(1));
}

TEST(HostArena, RefusesWhatItDoesNotOwn) {
  HostArena arena(256, options());
  const auto range = arena.take(64);
  arena.give_back(range);
  EXPECT_THROW(arena.give_back(range), InternalError);
  EXPECT_THROW(arena.give_back({256, 64}), InternalError);
}

// Against a map of every unit of 64 bytes.
TEST(HostArena, HandsOutTheLowestFreeRangeInAnyOrder) {
  std::mt19937 random(5);
  constexpr int kUnits = 40;
  HostArena arena(kUnits * 64, options());
  std::vector<bool> taken(kUnits);
  std::vector<HostRange> ranges;
  for (int i = 0; i < 5000; ++i) {
    if (ranges.empty() || random() % 2 == 0) {
      const int units = 1 + static_cast<int>(random() % 7);
      int lowest = -1;
      for (int at = 0, run = 0; at < kUnits && lowest < 0; ++at) {
        run = taken[at] ? 0 : run + 1;
        if (run == units) lowest = at - units + 1;
      }
      ASSERT_EQ(arena.has_room_for(units * 64 - 3), lowest >= 0);
      if (lowest < 0) continue;
      ranges.push_back(arena.take(units * 64 - 3));
      ASSERT_EQ(ranges.back().offset, lowest * 64);
      std::fill_n(taken.begin() + lowest, units, true);
    } else {
      std::swap(ranges[random() % ranges.size()], ranges.back());
      std::fill_n(taken.begin() + ranges.back().offset / 64, ranges.back().bytes / 64, false);
      arena.give_back(ranges.back());
      ranges.pop_back();
    }
    ASSERT_EQ(arena.bytes_in_use(), 64 * std::count(taken.begin(), taken.end(), true));
  }
  EXPECT_GT(arena.largest_bytes_in_use(), kUnits * 64 * 3 / 4);
}

// Asks for pinned memory in a build, or on a machine, that has none to give.
TEST(HostArena, FallsBackToPageableMemoryWithOneWarning) {
  if (at::globalContext().hasCUDA()) GTEST_SKIP() << "this machine pins";
  std::vector<std::string> warnings;
  auto asked = options(at::kCUDA);
  asked.warn = [&](const std::string& warning) { warnings.push_back(warning); };
  HostArena arena(1 << 16, asked);
  EXPECT_FALSE(arena.is_pinned());
  const auto range = arena.take(1 << 16);
  arena.tensor(range, {1 << 14}, at::kFloat).fill_(1);
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_NE(warnings[0].find("65536 bytes cannot be pinned"), std::string::npos) << warnings[0];
}

}  // namespace
}  // namespace steppe::memory
