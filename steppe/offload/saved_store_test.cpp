#include "steppe/offload/saved_store.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <future>
#include <random>

#include "steppe/base/error.h"
#include "steppe/base/live_threads.h"
#include "steppe/memory/scope.h"

namespace steppe::offload {
namespace {

using memory::Category;
using memory::Domain;

struct Link {
  Stream compute, to_device, to_host;
  CopyStreams streams() { return {compute, to_device, to_host}; }
};
Link threads() {
  return {Stream::caller(), Stream::worker("to device"), Stream::worker("to host")};
}
Link nothing() {
  return {Stream::inert(), Stream::inert(), Stream::inert()};
}

memory::HostArena arena_of(int64_t bytes, at::Device device = at::kCPU) {
  return {bytes, {.name = "test", .category = Category::kBoundary, .device = device}};
}

at::Tensor rows(int64_t tokens, int64_t layer, at::Device device = at::kCPU) {
  const memory::Scope scope(Category::kBoundary);
  const auto x = at::empty({tokens, 16}, at::TensorOptions().device(device));
  if (!x.is_meta()) x.fill_(static_cast<double>(layer + 1));
  return x;
}

constexpr int64_t bytes_of(int64_t tokens) {
  return tokens * 16 * 4;
}

int64_t live_boundaries(Domain domain = Domain::kDevice) {
  return memory::current_ledger().live_by_category(domain)[static_cast<int>(Category::kBoundary)];
}

struct Pass {
  int64_t num_layers, tokens;
  Placement placement = Placement::kHostIfRoom;
  at::Device device{at::kCPU};
  std::function<void(const std::string& where)> at_point = [](const std::string&) {};
};

// A micro-batch's forward and backward: layers that do nothing but check what comes back.
void run_pass(const Pass& pass, SavedStore& store) {
  const int64_t last = pass.num_layers - 1;
  auto h = rows(pass.tokens, 0, pass.device);
  for (int64_t layer = 0; layer <= last; ++layer) {
    {
      const memory::Scope scope(Category::kBoundary);
      store.save(layer, SavedName::kBoundary, h, pass.placement);
    }
    pass.at_point(fmt::format("forward {}", layer));
    h = layer < last ? rows(pass.tokens, layer + 1, pass.device) : at::Tensor{};
    store.end_forward(layer);
  }
  store.end_forward();
  pass.at_point("head");
  store.prefetch(last);
  for (int64_t layer = last; layer >= 0; --layer) {
    const auto restored = store.restore(layer, SavedName::kBoundary);
    store.prefetch(layer - 1);
    pass.at_point(fmt::format("backward {}", layer));
    ASSERT_EQ(restored.sizes(), (at::IntArrayRef{pass.tokens, 16}));
    if (restored.is_meta()) continue;
    ASSERT_TRUE(at::equal(restored, at::full({pass.tokens, 16}, static_cast<double>(layer + 1))));
  }
}

TEST(SavedStore, GivesBackTheSameBitsWhateverTheArenaHolds) {
  auto link = threads();
  for (int64_t held = 0; held <= 7; ++held) {
    auto arena = arena_of(held * bytes_of(9));
    for (int micro_batch = 0; micro_batch < 3; ++micro_batch) {
      SavedStore store(6, link.streams(), {arena, arena});
      run_pass({.num_layers = 6, .tokens = 9}, store);
    }
    EXPECT_EQ(arena.largest_bytes_in_use(), std::min<int64_t>(held, 6) * bytes_of(9));
    EXPECT_EQ(arena.bytes_in_use(), 0);
  }
}

// The device's share at every point, for q of 6 boundaries in host memory.
TEST(SavedStore, DeviceBytesAreThoseOfTheProgram) {
  auto link = threads();
  constexpr int64_t kLayers = 6, kTokens = 9;
  for (int64_t q = 0; q <= kLayers; ++q) {
    auto arena = arena_of(q * bytes_of(kTokens));
    SavedStore store(kLayers, link.streams(), {arena, arena});
    const int64_t before = live_boundaries();
    run_pass({.num_layers = kLayers,
              .tokens = kTokens,
              .at_point =
                  [&](const std::string& where) {
                    const int64_t live = (live_boundaries() - before) / bytes_of(kTokens);
                    const int64_t layer = where == "head" ? 0 : where.back() - '0';
                    if (where == "head") {
                      EXPECT_EQ(live, kLayers - q);
                    } else if (where[0] == 'f') {
                      // Of those in host memory, all but the last two have left.
                      EXPECT_EQ(live, layer + 1 - std::min(q, std::max<int64_t>(0, layer - 1)))
                          << where << " q " << q;
                    } else {
                      // Those that stay, the one at work, the one on its way.
                      const int64_t resident = std::max<int64_t>(0, layer + 1 - q);
                      const int64_t restored = (layer < q ? 1 : 0) + (layer >= 1 && layer - 1 < q ? 1 : 0);
                      EXPECT_EQ(live, resident + restored) << where << " q " << q;
                    }
                  }},
             store);
    EXPECT_EQ(live_boundaries(), before);
  }
}

TEST(SavedStore, CopiesTravelBesideTheLayer) {
  auto link = threads();
  auto arena = arena_of(bytes_of(4) * 3);
  SavedStore store(3, link.streams(), {arena, arena});
  std::promise<void> go;
  link.to_host.enqueue([ready = go.get_future().share()](void*) { ready.wait(); });
  const memory::Scope scope(Category::kBoundary);
  store.save(0, SavedName::kBoundary, rows(4, 0), Placement::kHost);
  store.end_forward(0);
  store.save(1, SavedName::kBoundary, rows(4, 1), Placement::kHost);  // no copy has started; nothing waited
  go.set_value();
  store.end_forward(1);
  EXPECT_EQ(at::equal(store.restore(0, SavedName::kBoundary), rows(4, 0)), true);
}

TEST(SavedStore, NamesAreKeptApart) {
  auto link = threads();
  auto arena = arena_of(1 << 16);
  SavedStore store(2, link.streams(), {arena, arena});
  const auto lse = at::full({3, 5}, 7.0);
  store.save(0, SavedName::kAttentionLogSumExp, lse, Placement::kHost);
  store.save(0, SavedName::kBoundary, rows(4, 0), Placement::kDevice);
  EXPECT_TRUE(store.is_on_host(0, SavedName::kAttentionLogSumExp));
  EXPECT_FALSE(store.is_on_host(0, SavedName::kBoundary));
  store.end_forward();
  EXPECT_FALSE(store.restore(1, SavedName::kAttentionLogSumExp).defined());
  EXPECT_FALSE(store.restore(0, SavedName::kAttentionOutput).defined());
  EXPECT_TRUE(at::equal(store.restore(0, SavedName::kAttentionLogSumExp), lse));
  EXPECT_TRUE(at::equal(store.restore(0, SavedName::kBoundary), rows(4, 0)));
  EXPECT_EQ(arena.bytes_in_use(), 0);
}

TEST(SavedStore, NoTokensAreOrdinary) {
  auto link = threads();
  auto arena = arena_of(0);
  SavedStore store(4, link.streams(), {arena, arena});
  run_pass({.num_layers = 4, .tokens = 0, .placement = Placement::kHost}, store);
}

TEST(SavedStore, ToTheHostWithoutRoomIsAnError) {
  auto link = threads();
  auto arena = arena_of(2 * bytes_of(4));
  SavedStore store(3, link.streams(), {arena, arena});
  EXPECT_THROW(run_pass({.num_layers = 3, .tokens = 4, .placement = Placement::kHost}, store), ValueError);
}

std::vector<memory::Event> events_of(at::Device device, int64_t held) {
  auto link = device.is_meta() ? nothing() : threads();
  memory::Ledger ledger;
  const memory::LedgerBinding binding(ledger);
  ledger.start_timeline();
  auto arena = arena_of(held * bytes_of(9), device);
  {
    SavedStore store(6, link.streams(), {arena, arena});
    run_pass({.num_layers = 6, .tokens = 9, .device = device}, store);
  }
  EXPECT_EQ(arena.bytes_in_use(), 0);
  return ledger.stop_timeline().events;
}

// Filters what checking the values allocates: the pass on `meta` has nothing to check.
TEST(SavedStore, AllocatesOnMetaWhatItAllocatesOnTheCpu) {
  for (const int64_t held : {0, 1, 3, 5, 6}) {
    auto boundaries = [](std::vector<memory::Event> events) {
      std::erase_if(events, [](const auto& e) { return e.category != Category::kBoundary; });
      for (auto& event : events) event.live_bytes = 0;
      return events;
    };
    const auto real = boundaries(events_of(at::kCPU, held)), dry = boundaries(events_of(at::kMeta, held));
    EXPECT_GE(real.size(), 12u);
    EXPECT_TRUE(real == dry) << held;
  }
}

TEST(SavedStore, AFailedCopyIsToldWhereItIsWaitedFor) {
  auto link = threads();
  auto arena = arena_of(1 << 16);
  {
    SavedStore store(3, link.streams(), {arena, arena});
    link.to_host.enqueue([](void*) { throw RuntimeFailure("the link is down"); });
    store.save(0, SavedName::kBoundary, rows(4, 0), Placement::kHost);
    store.end_forward(0);
    EXPECT_THROW(store.end_forward(1), RuntimeFailure);
  }
  EXPECT_EQ(arena.bytes_in_use(), 0);
  SavedStore store(3, link.streams(), {arena, arena});
  run_pass({.num_layers = 3, .tokens = 4}, store);  // the streams work again
}

struct Injected : std::runtime_error {
  using std::runtime_error::runtime_error;
};

TEST(SavedStore, AThousandPassesLeaveNothingBehind) {
  std::mt19937 random(11);
  auto link = threads();
  memory::Ledger ledger;
  const memory::LedgerBinding binding(ledger);
  const auto threads_before = num_live_threads();
  int thrown = 0, copies_failed = 0;
  size_t heap_before = 0;
  for (int i = 0; i < 1000; ++i) {
    if (i == 200) heap_before = mallinfo2().uordblks;
    const int64_t num_layers = 1 + static_cast<int64_t>(random() % 7);
    auto arena = arena_of(static_cast<int64_t>(random() % 4000));
    const int fail_at = static_cast<int>(random() % 40);  // some beyond the last point
    const bool in_a_copy = random() % 2 == 0;
    int point = 0;
    try {
      for (int micro_batch = 0; micro_batch < 2; ++micro_batch) {
        SavedStore store(num_layers, link.streams(), {arena, arena});
        run_pass({.num_layers = num_layers,
                  .tokens = static_cast<int64_t>(random() % 12),
                  .at_point =
                      [&](const std::string& where) {
                        EXPECT_LE(arena.bytes_in_use(), arena.bytes());
                        if (point++ != fail_at) return;
                        auto fail = [where](void*) { throw Injected(where); };
                        if (!in_a_copy) fail(nullptr);
                        (random() % 2 == 0 ? link.to_host : link.to_device).enqueue(fail);
                      }},
                 store);
      }
      // An error behind the last copy of a store is nobody's to wait for.
      link.to_host.drain(), link.to_device.drain();
    } catch (const Injected&) {
      ++(in_a_copy ? copies_failed : thrown);
    }
    ASSERT_EQ(arena.bytes_in_use(), 0);
    ASSERT_EQ(ledger.num_live_blocks(), arena.bytes() > 0 ? 1 : 0);
    link.to_host.synchronize(), link.to_device.synchronize();  // no error is left in them
  }
  EXPECT_EQ(ledger.num_live_blocks(), 0);
  EXPECT_EQ(num_live_threads(), threads_before);
  // Nor events or queued work: one kept of each pass would be 100 KiB and more.
  EXPECT_LT(mallinfo2().uordblks, heap_before + (64 << 10));
  EXPECT_GT(thrown, 100);
  EXPECT_GT(copies_failed, 100);
}

}  // namespace
}  // namespace steppe::offload
