// Small runs of the benchmark: what it reports beside times.
#include "cli/bench/optimizer_bench.h"

#include <gtest/gtest.h>

#include "steppe/memory/host_arena.h"

namespace steppe::cli {
namespace {

TEST(OptimizerBench, RowsSayWhatLivesWhere) {
  constexpr int64_t kParams = 100'003, kBucket = 30'000;
  const auto aligned = memory::HostArena::aligned;
  for (const bool host_gradients : {false, true}) {
    const auto rows = bench_optimizer({.params = kParams,
                                       .bucket_params = kBucket,
                                       .slots = 2,
                                       .dtype = c10::kBFloat16,
                                       .host_gradients = host_gradients,
                                       .samples = 1});
    ASSERT_EQ(rows.size(), 5u);
    const int64_t state = 3 * aligned(4 * kParams), grad = host_gradients ? aligned(4 * kParams) : 0;
    EXPECT_EQ(rows[0].name, "resident");
    EXPECT_EQ(rows[0].device_bytes, 12 * kParams);
    EXPECT_EQ(rows[0].link_bytes, 0);
    EXPECT_EQ(rows[1].name, "cpu");
    EXPECT_EQ(rows[1].device_bytes, 0);
    EXPECT_EQ(rows[1].host_bytes,
              state + grad + 2 * (aligned(2 * kBucket) + (host_gradients ? 0 : aligned(4 * kBucket))));
    EXPECT_EQ(rows[1].link_bytes, (host_gradients ? 2 : 4) * kParams);
    EXPECT_EQ(rows[2].name, "stream");
    EXPECT_EQ(rows[2].host_bytes, state + grad);
    EXPECT_EQ(rows[2].staging_bytes, 2 * kBucket * (host_gradients ? 16 : 12));
    EXPECT_EQ(rows[2].link_bytes, (host_gradients ? 16 : 12) * kParams);
    for (const auto& row : rows) EXPECT_GT(row.time_s, 0) << row.name;
  }
}

}  // namespace
}  // namespace steppe::cli
