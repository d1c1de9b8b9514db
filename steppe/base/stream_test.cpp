#include "steppe/base/stream.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <numeric>
#include <vector>

#include "steppe/base/error.h"
#include "steppe/base/live_threads.h"

namespace steppe {
namespace {

template <class Call>
std::string message_of(Call call) {
  try {
    call();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "no error";
}

void fail(void*) {
  throw RuntimeFailure("the link is down");
}

TEST(Stream, AWorkerRunsInOrderBesideTheCaller) {
  auto stream = Stream::worker("test");
  EXPECT_EQ(stream.kind(), Stream::Kind::kWorker);
  std::promise<void> go;
  std::vector<int> order;
  stream.enqueue([&, ready = go.get_future().share()](void* cuda_stream) {
    EXPECT_EQ(cuda_stream, nullptr);
    ready.wait();
  });
  for (int i = 0; i < 100; ++i) stream.enqueue([&order, i](void*) { order.push_back(i); });
  const auto event = stream.record();
  EXPECT_FALSE(event.done());  // the caller is here, the worker waits for it
  go.set_value();
  event.wait();
  EXPECT_TRUE(event.done());
  std::vector<int> expected(100);
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(order, expected);
}

TEST(Stream, AnEventCoversWhatCameBeforeIt) {
  auto stream = Stream::worker("test");
  std::promise<void> go;
  int before = 0;
  stream.enqueue([&](void*) { before = 1; });
  const auto event = stream.record();
  stream.enqueue([ready = go.get_future().share()](void*) { ready.wait(); });
  event.wait();  // what follows it may go on for ever
  EXPECT_EQ(before, 1);
  go.set_value();
}

TEST(Stream, AStreamWaitsForAnothersEvent) {
  auto first = Stream::worker("first"), second = Stream::worker("second");
  std::promise<void> go;
  int value = 0;
  first.enqueue([&value, ready = go.get_future().share()](void*) {
    ready.wait();
    value = 7;
  });
  second.wait(first.record());
  int seen = 0;
  second.enqueue([&](void*) { seen = value; });
  const auto done = second.record();
  EXPECT_FALSE(done.done());
  go.set_value();
  done.wait();
  EXPECT_EQ(seen, 7);
}

TEST(Stream, CopiesThroughTwoWorkersArriveWhole) {
  auto out = Stream::worker("out"), in = Stream::worker("in");
  constexpr size_t kCount = 1 << 12;
  std::vector<std::vector<int>> from(50), host(50), back(50);
  for (int i = 0; i < 50; ++i) {
    from[i].assign(kCount, i + 1), host[i].assign(kCount, 0), back[i].assign(kCount, 0);
    out.copy(host[i].data(), from[i].data(), kCount * sizeof(int), LinkPurpose::kBoundary);
    in.wait(out.record());
    in.copy(back[i].data(), host[i].data(), kCount * sizeof(int), LinkPurpose::kBoundary);
  }
  in.record().wait();
  EXPECT_EQ(back, from);
}

TEST(Stream, ErrorsSurfaceAtTheWaitAndWorkBehindThemIsSkipped) {
  auto stream = Stream::worker("test"), other = Stream::worker("other");
  bool ran = false;
  const auto before = stream.record();
  stream.enqueue(fail);
  stream.enqueue([&](void*) { ran = true; });
  const auto event = stream.record();
  EXPECT_EQ(message_of([&] { before.wait(); }), "no error");
  EXPECT_EQ(message_of([&] { event.wait(); }), "the link is down");
  EXPECT_EQ(message_of([&] { event.wait(); }), "the link is down");
  EXPECT_TRUE(event.done());
  other.wait(event);
  EXPECT_EQ(message_of([&] { other.record().wait(); }), "the link is down");
  EXPECT_EQ(message_of([&] { Stream::caller().wait(event); }), "the link is down");
  EXPECT_EQ(message_of([&] { stream.synchronize(); }), "the link is down");
  EXPECT_FALSE(ran);
  // It took note: the stream works again, and its old event still tells.
  stream.enqueue([&](void*) { ran = true; });
  EXPECT_EQ(message_of([&] { stream.synchronize(); }), "no error");
  EXPECT_TRUE(ran);
  EXPECT_EQ(message_of([&] { event.wait(); }), "the link is down");
  other.drain();
  EXPECT_EQ(message_of([&] { other.synchronize(); }), "no error");
}

TEST(Stream, EndsItsWorkBeforeItIsGone) {
  const auto threads = num_live_threads();
  std::atomic<int> count = 0;
  Event event;
  for (int i = 0; i < 200; ++i) {
    auto stream = Stream::worker("short");
    auto moved = std::move(stream);
    for (int j = 0; j < 5; ++j) moved.enqueue([&](void*) { ++count; });
    if (i % 3 == 0) moved.enqueue(fail);
    event = moved.record();
  }
  EXPECT_EQ(count, 1000);
  EXPECT_TRUE(event.done());  // outlives its stream
  EXPECT_EQ(num_live_threads(), threads);
}

TEST(Stream, ReleasesWorkBeforeTheEventBehindIt) {
  auto stream = Stream::worker("test");
  for (int i = 0; i < 200; ++i) {
    auto held = std::make_shared<int>(i);
    stream.enqueue([held](void*) {});
    stream.record().wait();
    EXPECT_EQ(held.use_count(), 1);
  }
}

TEST(Stream, CountsCopiesByPurposeWhereItIsToldTo) {
  Tally<LinkPurpose> bytes;
  const std::vector<int> from(16, 3);
  for (auto kind : {Stream::Kind::kWorker, Stream::Kind::kInert}) {
    auto stream = kind == Stream::Kind::kWorker ? Stream::worker("test") : Stream::inert();
    std::vector<int> to(16);
    bytes.reset();
    stream.copy(to.data(), from.data(), 64, LinkPurpose::kSaved);
    EXPECT_EQ(bytes.sum(), 0);
    stream.count_copies_in(&bytes);
    auto moved = std::move(stream);  // and goes on counting
    moved.copy(to.data(), from.data(), 64, LinkPurpose::kSaved);
    moved.copy(to.data(), from.data(), 24, LinkPurpose::kSaved);
    moved.copy(to.data(), from.data(), 8, LinkPurpose::kOptimizer);
    moved.copy(to.data(), from.data(), 0, LinkPurpose::kOptimizer);
    moved.synchronize();
    EXPECT_EQ(bytes[LinkPurpose::kSaved], 88);
    EXPECT_EQ(bytes[LinkPurpose::kOptimizer], 8);
    EXPECT_EQ(bytes.sum(), 96);
    moved.count_copies_in(nullptr);
    moved.copy(to.data(), from.data(), 64, LinkPurpose::kSaved);
    moved.synchronize();
    EXPECT_EQ(bytes.sum(), 96);
  }
}

TEST(Stream, TheCallerRunsAtOnceAndTheInertStreamNever) {
  auto caller = Stream::caller(), inert = Stream::inert();
  int count = 0;
  caller.enqueue([&](void*) { ++count; });
  inert.enqueue([&](void*) { ++count; });
  EXPECT_EQ(count, 1);
  const int from = 5;
  int to = 0;
  inert.copy(nullptr, nullptr, 4096, LinkPurpose::kBoundary);
  inert.copy(&to, &from, sizeof(int), LinkPurpose::kBoundary);
  EXPECT_EQ(to, 0);
  caller.copy(&to, &from, sizeof(int), LinkPurpose::kBoundary);
  EXPECT_EQ(to, 5);
  EXPECT_TRUE(inert.record().done());
  EXPECT_TRUE(caller.record().done());
  EXPECT_TRUE(Event().done());
  EXPECT_EQ(message_of([&] { caller.enqueue(fail); }), "the link is down");
}

}  // namespace
}  // namespace steppe
