#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>

#include "steppe/base/error.h"
#include "steppe/comm/connection_lost.h"
#include "steppe/comm/shape_only_communicator.h"
#include "steppe/comm/test_world.h"
#include "steppe/memory/scope.h"

namespace steppe::comm {
namespace {

constexpr int64_t kWidth = 3;

// Rows that `from` sends to `to`: uneven, often none, none at all to or from rank 2.
int64_t rows_between(int from, int to) {
  return from == 2 || to == 2 ? 0 : (from * 5 + to * 3) % 4 * 7;
}

int64_t seed_of(int from, int to) {
  return from * 16 + to + 1;
}

struct Lists {
  std::vector<at::Tensor> sends, receives;
};

Lists make_lists(int rank, int world_size, at::ScalarType dtype) {
  Lists lists;
  for (int peer = 0; peer < world_size; ++peer) {
    lists.sends.push_back(numbered(rows_between(rank, peer), kWidth, seed_of(rank, peer), dtype));
    lists.receives.push_back(at::zeros({rows_between(peer, rank), kWidth}, dtype));
  }
  return lists;
}

class Exchange : public testing::TestWithParam<Transport> {
 protected:
  static std::unique_ptr<Communicator> world_of(int rank, int world_size,
                                                const c10::intrusive_ptr<c10d::Store>& store) {
    return make_world(rank, world_size, store, std::chrono::minutes(5), "world", GetParam());
  }
};

TEST_P(Exchange, EveryTensorArrivesBitForBit) {
  for (const int world_size : kWorldSizes) {
    run_ranks(world_size, [&](int rank, const auto& store) {
      const auto world = world_of(rank, world_size, store);
      for (const auto dtype : {at::kFloat, at::kBFloat16, at::kInt, at::kLong}) {
        const Lists lists = make_lists(rank, world_size, dtype);
        world->exchange(lists.sends, lists.receives).wait();
        for (int peer = 0; peer < world_size; ++peer) {
          const at::Tensor expected = numbered(rows_between(peer, rank), kWidth, seed_of(peer, rank), dtype);
          EXPECT_TRUE(at::equal(lists.receives[peer], expected))
              << peer << " to " << rank << " of " << world_size;
        }
      }
    });
  }
}

TEST_P(Exchange, CountsWireBytesAndAllocatesNothing) {
  for (const int world_size : kWorldSizes) {
    std::atomic<int64_t> by_other_threads{-memory::process_ledger().num_allocations()};
    run_ranks(world_size, [&](int rank, const auto& store) {
      const auto world = world_of(rank, world_size, store);
      const Lists lists = make_lists(rank, world_size, at::kBFloat16);
      int64_t sent = 0;
      for (int peer = 0; peer < world_size; ++peer) {
        if (peer != rank) sent += rows_between(rank, peer) * kWidth * 2;
      }
      const int64_t before = memory::current_ledger().num_allocations();
      Pending pending = world->exchange(lists.sends, lists.receives);
      EXPECT_EQ(world->wire_bytes(), sent);
      pending.wait();
      EXPECT_TRUE(pending.done());
      EXPECT_EQ(world->all_gather_host(std::vector<int64_t>{rank, -rank}).size(), 2u * world_size);
      world->barrier();
      EXPECT_EQ(memory::current_ledger().num_allocations(), before);
      EXPECT_EQ(world->wire_bytes(), sent + (world_size - 1) * (16 + 8));
    });
    by_other_threads += memory::process_ledger().num_allocations();
    EXPECT_EQ(by_other_threads, 0);
  }
}

TEST_P(Exchange, UndefinedStandsForNothing) {
  run_ranks(3, [](int rank, const auto& store) {
    const auto world = world_of(rank, 3, store);
    // Only rank 0 sends, and only to rank 1.
    std::vector<at::Tensor> sends(3), receives(3);
    if (rank == 0) sends[1] = numbered(5, 2, 9, at::kInt);
    if (rank == 1) receives[0] = at::zeros({5, 2}, at::kInt);
    world->exchange(sends, receives).wait();
    if (rank == 1) {
      EXPECT_TRUE(at::equal(receives[0], numbered(5, 2, 9, at::kInt)));
    }
    EXPECT_EQ(world->wire_bytes(), rank == 0 ? 40 : 0);
    world->barrier();  // Gloo's connecting fails when a peer has left before all have connected
  });
}

TEST_P(Exchange, ManyOutstandingMatchInOrderOfCall) {
  constexpr int kExchanges = 150;
  for (const int world_size : {2, 3}) {
    run_ranks(world_size, [&](int rank, const auto& store) {
      const auto world = world_of(rank, world_size, store);
      std::vector<Pending> pending;
      std::vector<std::vector<at::Tensor>> received;
      for (int i = 0; i < kExchanges; ++i) {
        std::vector<at::Tensor> sends, receives;
        for (int peer = 0; peer < world_size; ++peer) {
          // All of one size, so that a mismatch would go unnoticed by sizes alone; every tenth is large.
          const int64_t rows = i % 10 == 0 ? 5000 : 4;
          sends.push_back(numbered(rows, 4, i * 64 + seed_of(rank, peer), at::kInt));
          receives.push_back(at::zeros({rows, 4}, at::kInt));
        }
        pending.push_back(world->exchange(sends, receives));
        received.push_back(receives);  // the sends live in the Pending alone
      }
      for (int i = kExchanges - 1; i >= 0; --i) pending[i].wait();
      for (int i = 0; i < kExchanges; ++i) {
        for (int peer = 0; peer < world_size; ++peer) {
          const at::Tensor& got = received[i][peer];
          ASSERT_TRUE(at::equal(got, numbered(got.size(0), 4, i * 64 + seed_of(peer, rank), at::kInt))) << i;
        }
      }
    });
  }
}

TEST_P(Exchange, LargerThanAnyBuffer) {
  constexpr int64_t kBytes = 12 << 20;
  run_ranks(3, [&](int rank, const auto& store) {
    const auto world = world_of(rank, 3, store);
    std::vector<at::Tensor> sends, receives;
    for (int peer = 0; peer < 3; ++peer) {
      sends.push_back(at::full({kBytes}, rank * 3 + peer, at::kByte));
      receives.push_back(at::empty({kBytes}, at::kByte));
    }
    world->exchange(sends, receives).wait();
    for (int peer = 0; peer < 3; ++peer)
      EXPECT_TRUE((receives[peer] == peer * 3 + rank).all().template item<bool>());
  });
}

TEST_P(Exchange, DestroyedPendingWaits) {
  run_ranks(2, [](int rank, const auto& store) {
    const auto world = world_of(rank, 2, store);
    const Lists lists = make_lists(rank, 2, at::kFloat);
    { const Pending dropped = world->exchange(lists.sends, lists.receives); }
    const int peer = 1 - rank;
    EXPECT_TRUE(at::equal(lists.receives[peer],
                          numbered(rows_between(peer, rank), kWidth, seed_of(peer, rank), at::kFloat)));
  });
}

TEST_P(Exchange, HostIntegersInRankOrder) {
  for (const int world_size : kWorldSizes) {
    run_ranks(world_size, [&](int rank, const auto& store) {
      const auto world = world_of(rank, world_size, store);
      for (const int64_t length : {0, 1, 5}) {
        std::vector<int64_t> mine, expected;
        for (int64_t i = 0; i < length; ++i) mine.push_back(rank * 100 + i);
        for (int r = 0; r < world_size; ++r) {
          for (int64_t i = 0; i < length; ++i) expected.push_back(r * 100 + i);
        }
        EXPECT_EQ(world->all_gather_host(mine), expected);
      }
    });
  }
}

template <typename Error, typename Function>
std::string message_of(Function function) {
  try {
    function();
  } catch (const Error& error) {
    return error.what();
  }
  return "not thrown";
}

void expect_words(const std::string& message, std::initializer_list<const char*> words) {
  for (const char* word : words)
    EXPECT_NE(message.find(word), std::string::npos) << word << " in: " << message;
}

TEST(ExchangeErrors, NameTheArgument) {
  const at::Tensor two = at::zeros({2}), three = at::zeros({3});
  LocalCommunicator local("control", at::kCPU);
  ShapeOnlyCommunicator shapes("expert.1", 0, 2);
  const auto refused = [](Communicator& group, std::vector<at::Tensor> sends,
                          std::vector<at::Tensor> receives) {
    return message_of<ValueError>([&] { group.exchange(sends, receives); });
  };
  expect_words(refused(local, {two, two}, {two}), {"[comm control]", "sends", "1 ranks", "got 2"});
  expect_words(refused(local, {two}, {three}), {"rank 0 itself", "2 elements", "receives 3"});
  expect_words(refused(local, {two}, {two.to(at::kInt)}), {"Float", "Int"});
  expect_words(refused(local, {two}, {at::Tensor()}), {"receives 0"});
  expect_words(refused(local, {at::zeros({4, 2}).t()}, {at::zeros({8})}), {"sends[0]", "contiguous"});
  expect_words(refused(shapes, {two, {}}, {two, {}}), {"[comm expert.1]", "sends[0]", "meta", "cpu"});
}

enum class Peer { kVanishes, kHangs };

// What rank 0 is told of rank 1.
ConnectionLost failure_of_rank0(Transport transport, Peer peer, std::chrono::milliseconds timeout) {
  ConnectionLost lost("not thrown");
  std::promise<void> told;
  run_ranks(2, [&](int rank, const auto& store) {
    auto world = make_world(rank, 2, store, timeout, "expert.3", transport);
    if (rank == 1) {
      if (peer == Peer::kHangs) told.get_future().wait_for(std::chrono::minutes(2));
      return;
    }
    std::vector<at::Tensor> sends(2, at::ones({10})), receives(2, at::zeros({10}));
    sends[0] = receives[0] = at::Tensor();
    try {
      world->exchange(sends, receives).wait();
    } catch (const ConnectionLost& error) {
      lost = error;
    }
    told.set_value();
    // The group is broken now: later calls fail too, at once.
    EXPECT_THROW(world->barrier(), RuntimeFailure);
  });
  return lost;
}

TEST_P(Exchange, APeerThatVanishesIsNotWaitedFor) {
  const auto lost = failure_of_rank0(GetParam(), Peer::kVanishes, std::chrono::minutes(2));
  EXPECT_EQ(lost.cause(), LossCause::kGone);  // at the timeout it would be late
  expect_words(lost.what(), {"[comm expert.3]", "rank 0 (global 0)", "rank 1 (global 1)"});
}

TEST_P(Exchange, APeerThatHangsFailsAtTheTimeout) {
  const auto lost = failure_of_rank0(GetParam(), Peer::kHangs, std::chrono::milliseconds(2500));
  EXPECT_EQ(lost.cause(), LossCause::kLate);
  expect_words(lost.what(),
               {"[comm expert.3]", "rank 0 (global 0)", "receiving from rank 1 (global 1)", "2.5 s"});
}

TEST_P(Exchange, APeerThatNeverComesFailsTheConnecting) {
  run_ranks(2, [](int rank, const auto& store) {
    if (rank == 1) return;
    const std::string message = message_of<RuntimeFailure>(
        [&] { make_world(0, 2, store, std::chrono::milliseconds(1000), "weights", GetParam()); });
    expect_words(message, {"[comm weights]", "rank 0 of 2", "1 s"});
  });
}

INSTANTIATE_TEST_SUITE_P(Transports, Exchange, testing::Values(Transport::kSharedMemory, Transport::kGloo),
                         [](const auto& info) {
                           return info.param == Transport::kGloo ? "Gloo" : "SharedMemory";
                         });

TEST(RankThreads, RethrowsTheFirstFailure) {
  try {
    run_ranks(3, [](int rank, const auto& store) {
      const auto world = make_world(rank, 3, store);
      if (rank == 1) throw ValueError("rank one is unwell");
      world->barrier();  // fails, since rank 1 has gone
      FAIL() << "the barrier must not pass";
    });
    FAIL() << "must throw";
  } catch (const ValueError& error) {
    EXPECT_STREQ(error.what(), "rank one is unwell");
  }
}

}  // namespace
}  // namespace steppe::comm
