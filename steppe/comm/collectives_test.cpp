#include "steppe/comm/collectives.h"

#include <gtest/gtest.h>

#include "steppe/base/error.h"
#include "steppe/comm/shape_only_communicator.h"
#include "steppe/comm/test_world.h"
#include "steppe/memory/scope.h"

namespace steppe::comm {
namespace {

// Rows of each rank's shard: uneven, and none on some.
std::vector<int64_t> uneven_rows(int world_size) {
  std::vector<int64_t> rows;
  for (int r = 0; r < world_size; ++r) rows.push_back((r * 4 + 5) % 7 * (r % 3 == 2 ? 0 : 1));
  return rows;
}

TEST(AllGather, EqualShardsInPlaceOrNot) {
  for (const int world_size : kWorldSizes) {
    run_ranks(world_size, [&](int rank, const auto& store) {
      const auto world = make_world(rank, world_size, store);
      for (const int64_t n : {0, 1, 1000}) {
        std::vector<at::Tensor> shards;
        for (int r = 0; r < world_size; ++r) shards.push_back(numbered(n, 1, r + 1, at::kBFloat16).view({n}));
        const at::Tensor expected = at::cat(shards);
        const int64_t before = world->wire_bytes();
        const at::Tensor full = at::zeros({n * world_size}, at::kBFloat16);
        all_gather(*world, full, shards[rank]).wait();
        EXPECT_TRUE(at::equal(full, expected));
        EXPECT_EQ(world->wire_bytes() - before, (world_size - 1) * n * 2);
        full.zero_();
        full.narrow(0, rank * n, n).copy_(shards[rank]);
        all_gather(*world, full, full.narrow(0, rank * n, n)).wait();
        EXPECT_TRUE(at::equal(full, expected));
      }
    });
  }
}

TEST(AllGatherRows, UnevenAndEmptyRanks) {
  for (const int world_size : kWorldSizes) {
    const std::vector<int64_t> rows = uneven_rows(world_size);
    run_ranks(world_size, [&](int rank, const auto& store) {
      const auto world = make_world(rank, world_size, store);
      std::vector<at::Tensor> shards;
      for (int r = 0; r < world_size; ++r) shards.push_back(numbered(rows[r], 3, r + 1, at::kInt));
      const at::Tensor expected = at::cat(shards);
      const at::Tensor full = at::zeros_like(expected);
      all_gather_rows(*world, full, shards[rank], rows).wait();
      EXPECT_TRUE(at::equal(full, expected));
      EXPECT_EQ(world->wire_bytes(), (world_size - 1) * rows[rank] * 3 * 4);
    });
  }
}

TEST(AllToAllRows, IsATransposition) {
  const auto rows_between = [](int from, int to) -> int64_t {
    return from == 1 ? 0 : (from * 3 + to * 5) % 6;
  };
  for (const int world_size : kWorldSizes) {
    run_ranks(world_size, [&](int rank, const auto& store) {
      const auto world = make_world(rank, world_size, store);
      std::vector<int64_t> send_rows, receive_rows;
      std::vector<at::Tensor> sent, expected;
      for (int p = 0; p < world_size; ++p) {
        send_rows.push_back(rows_between(rank, p));
        receive_rows.push_back(rows_between(p, rank));
        sent.push_back(numbered(send_rows[p], 5, rank * 8 + p, at::kBFloat16));
        expected.push_back(numbered(receive_rows[p], 5, p * 8 + rank, at::kBFloat16));
      }
      const at::Tensor in = at::cat(sent), out = at::zeros_like(at::cat(expected));
      all_to_all_rows(*world, out, in, receive_rows, send_rows).wait();
      EXPECT_TRUE(at::equal(out, at::cat(expected)));
      EXPECT_EQ(world->wire_bytes(), (in.size(0) - send_rows[rank]) * 5 * 2);
      // And back again.
      const at::Tensor back = at::zeros_like(in);
      all_to_all_rows(*world, back, out, send_rows, receive_rows).wait();
      EXPECT_TRUE(at::equal(back, in));
    });
  }
}

at::Tensor random_full(int rank, int64_t numel, at::ScalarType dtype) {
  at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(1000 + rank);
  return at::randn({numel}, generator, at::TensorOptions(at::kDouble)).to(dtype);
}

TEST(ExchangeParts, BringsEveryRanksPartInRankOrder) {
  for (const int world_size : kWorldSizes) {
    run_ranks(world_size, [&](int rank, const auto& store) {
      const auto world = make_world(rank, world_size, store);
      for (const auto dtype : {at::kFloat, at::kBFloat16, at::kDouble}) {
        for (const int64_t n : {0, 1, 5000}) {
          const int64_t wire_before = world->wire_bytes();
          const at::Tensor full = random_full(rank, n * world_size, dtype);
          const at::Tensor scratch = world_size == 1 ? at::Tensor() : at::empty_like(full);
          const int64_t before = memory::current_ledger().num_allocations();
          auto sum = exchange_parts(*world, full, scratch);
          sum.arriving.wait();
          EXPECT_EQ(memory::current_ledger().num_allocations(), before);
          ASSERT_EQ(sum.parts.size(), static_cast<size_t>(world_size));
          for (int r = 0; r < world_size; ++r) {
            const at::Tensor want = random_full(r, n * world_size, dtype).narrow(0, rank * n, n);
            EXPECT_TRUE(at::equal(sum.parts[r], want))
                << r << " of " << world_size << " " << dtype << " " << n;
          }
          EXPECT_TRUE(sum.parts[rank].is_alias_of(full)) << "its own part is not copied";
          EXPECT_EQ(world->wire_bytes() - wire_before,
                    (world_size - 1) * n * static_cast<int64_t>(full.element_size()));
        }
      }
    });
  }
}

TEST(AllReduce, SumsAndMaximaAreTheSameEverywhere) {
  for (const int world_size : kWorldSizes) {
    run_ranks(world_size, [&](int rank, const auto& store) {
      const auto world = make_world(rank, world_size, store);
      // Values whose sum depends on the order: 1e16, 1, -1e16, 1, …
      const auto value_of = [](int r) { return r % 4 == 0 ? 1e16 : r % 4 == 2 ? -1e16 : 1.0; };
      double in_order = 0;
      int64_t count = 0;
      for (int r = 0; r < world_size; ++r) {
        in_order += value_of(r);
        count += r * r - 3;
      }
      EXPECT_EQ(all_reduce_sum(*world, value_of(rank)), in_order);
      const std::vector<double> pair = {value_of(rank), 2.0};
      EXPECT_EQ(all_reduce_sum(*world, pair), (std::vector<double>{in_order, 2.0 * world_size}));
      const std::vector<int64_t> counts = {rank * rank - 3, 1};
      EXPECT_EQ(all_reduce_sum(*world, counts), (std::vector<int64_t>{count, world_size}));
      EXPECT_TRUE(all_reduce_sum(*world, std::vector<int64_t>{}).empty());
      EXPECT_EQ(all_reduce_max(*world, -(rank - 1) * (rank - 1)), world_size == 1 ? -1 : 0);
      EXPECT_EQ(world->wire_bytes(), (world_size - 1) * (8 + 16 + 16 + 8));
    });
  }
}

template <typename Function>
void expect_refused(Function function, std::initializer_list<const char*> words) {
  try {
    function();
    FAIL() << "must throw ValueError";
  } catch (const ValueError& error) {
    for (const char* word : words) {
      EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << word << " in: " << error.what();
    }
  }
}

TEST(CollectiveErrors, NameTheArgument) {
  ShapeOnlyCommunicator group("weights", 1, 3);
  const auto meta = [](at::IntArrayRef sizes, at::ScalarType dtype = at::kFloat) {
    return at::empty(sizes, at::TensorOptions(dtype).device(at::kMeta));
  };
  const std::vector<int64_t> rows = {2, 0, 1}, two = {2, 1}, negative = {4, -2, 1};
  expect_refused([&] { all_gather(group, meta({5}), meta({2})); },
                 {"[comm weights]", "full.size(0)", "6", "got 5"});
  expect_refused([&] { all_gather(group, meta({6}), meta({2}, at::kInt)); }, {"dtype", "Float", "Int"});
  expect_refused(
      [&] {
        all_gather_rows(group, meta({3, 4}), meta({1, 4}), rows);
      },
      {"shard.size(0) must be 0", "got 1"});
  expect_refused([&] { all_gather_rows(group, meta({3, 4}), meta({0, 5}), rows); }, {"3×4", "0×5"});
  expect_refused([&] { all_gather_rows(group, meta({3}), meta({1}), two); }, {"3 ranks", "got 2"});
  expect_refused([&] { all_gather_rows(group, meta({3}), meta({1}), negative); }, {"sum of its rows"});
  expect_refused([&] { all_to_all_rows(group, meta({3}), meta({4}), rows, rows); },
                 {"in.size(0)", "3, got 4"});
  expect_refused([&] { all_gather(group, meta({4, 6}).t(), meta({2, 4})); }, {"full must be a contiguous"});
  expect_refused([&] { exchange_parts(group, meta({6}), at::Tensor()); }, {"scratch must be"});
  expect_refused([&] { exchange_parts(group, meta({7}), meta({7})); }, {"full.size(0)", "6, got 7"});
  expect_refused([&] { exchange_parts(group, meta({6}), meta({6}, at::kBFloat16)); }, {"Float", "BFloat16"});
}

// A layer's traffic as the step issues it, on either kind of communicator.
void traffic(Communicator& group, at::DeviceType device) {
  const auto take = [&](at::IntArrayRef sizes, at::ScalarType dtype) {
    return at::empty(sizes, at::TensorOptions(dtype).device(device));
  };
  const int64_t size = group.size(), n = 37;
  const at::Tensor shard = take({n}, at::kBFloat16);
  at::Tensor full;
  {
    memory::Scope scope(memory::Category::kGathered);
    full = take({n * size}, at::kBFloat16);
    Pending gather = all_gather(group, full, shard);
    const at::Tensor meanwhile = take({5}, at::kFloat);
    gather.wait();
  }
  {
    memory::Scope scope(memory::Category::kDispatch);
    const std::vector<int64_t> rows(static_cast<size_t>(size), 4);
    const at::Tensor in = take({4 * size, 8}, at::kFloat), out = take({4 * size, 8}, at::kFloat);
    all_to_all_rows(group, out, in, rows, rows).wait();
  }
  memory::Scope scope(memory::Category::kGrads);
  const at::Tensor accumulator = take({n}, at::kFloat);
  const at::Tensor scratch = take({n * size}, at::kBFloat16);
  exchange_parts(group, full, scratch).arriving.wait();
  group.barrier();
}

TEST(ShapeOnly, SameAllocationsAndWireBytesAsGloo) {
  for (const int world_size : kWorldSizes) {
    run_ranks(world_size, [&](int rank, const auto& store) {
      const auto world = make_world(rank, world_size, store);
      ShapeOnlyCommunicator shapes("world", rank, world_size);
      memory::Ledger& ledger = memory::current_ledger();
      ledger.start_timeline();
      traffic(*world, at::kCPU);
      const auto real = ledger.stop_timeline().events;
      ledger.start_timeline();
      traffic(shapes, at::kMeta);
      EXPECT_EQ(ledger.stop_timeline().events, real);
      EXPECT_EQ(real.size(), 14u);
      EXPECT_EQ(shapes.wire_bytes(), world->wire_bytes());
    });
  }
}

TEST(ShapeOnly, AnswersAsIfAllHadSentTheSame) {
  ShapeOnlyCommunicator group("control", 1, 3);
  EXPECT_EQ(group.all_gather_host(std::vector<int64_t>{4, 5}), (std::vector<int64_t>{4, 5, 4, 5, 4, 5}));
  EXPECT_EQ(all_reduce_sum(group, 1.5), 4.5);
  EXPECT_THROW(ShapeOnlyCommunicator("control", 3, 3), ValueError);
}

}  // namespace
}  // namespace steppe::comm
