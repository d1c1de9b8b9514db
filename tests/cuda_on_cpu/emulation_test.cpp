#include "tests/cuda_on_cpu/emulation.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <numeric>
#include <set>
#include <vector>

#include "steppe/kernels/device_test.h"
#include "steppe/kernels/host_values_backend.h"
#include "steppe/kernels/pointwise.h"
#include "steppe/kernels/rms_norm.h"

namespace cuda_on_cpu {
namespace {

TEST(CudaOnCpu, EveryThreadOfEveryBlockRunsOnce) {
  for (const dim3 block : {dim3(1), dim3(40), dim3(8, 3, 2), dim3(1024)}) {
    const dim3 grid(3, 2, 2);
    std::vector<int> runs(size_t{grid.count()} * block.count());
    run(grid, block, {}, [&] {
      const unsigned thread = threadIdx.x + block.x * (threadIdx.y + block.y * threadIdx.z);
      const unsigned at = blockIdx.x + grid.x * (blockIdx.y + grid.y * blockIdx.z);
      ++runs[at * block.count() + thread];
    });
    EXPECT_EQ(runs, std::vector<int>(runs.size(), 1));
  }
}

TEST(CudaOnCpu, BlocksOfAClusterMeetAndSeeOneAnother) {
  std::atomic<int> arrived = 0, too_early = 0;
  run({2, 4}, 64, {1, 4}, [&] {
    static thread_local unsigned shared;
    if (threadIdx.x == 0) shared = blockIdx.y;
    ++arrived;
    wait_for_cluster();
    for (unsigned rank = 0; rank < cluster_size; ++rank)
      too_early += *static_cast<unsigned*>(shared_of_block(&shared, rank)) != rank;
    wait_for_cluster();
  });
  EXPECT_EQ(arrived, 2 * 4 * 64);
  EXPECT_EQ(too_early, 0);
}

// By what device_test.h finds it in a kernel: bits that differ from one launch to the next.
TEST(CudaOnCpu, BlocksWarpsAndLanesComeInAnyOrder) {
  std::set<std::vector<unsigned>> blocks, warps, lanes;
  for (int launch = 0; launch < 12; ++launch) {
    std::vector<unsigned> order_of_blocks, order_of_warps, order_of_lanes;
    run({3, 2}, 256, {}, [&] {
      if (threadIdx.x == 0) order_of_blocks.push_back(blockIdx.x + 3 * blockIdx.y);
      if (blockIdx.x + blockIdx.y == 0 && threadIdx.x % kWarp == 0)
        order_of_warps.push_back(threadIdx.x / kWarp);
      if (blockIdx.x + blockIdx.y == 0 && threadIdx.x < kWarp) order_of_lanes.push_back(threadIdx.x);
    });
    blocks.insert(order_of_blocks), warps.insert(order_of_warps), lanes.insert(order_of_lanes);
    for (auto* order : {&order_of_blocks, &order_of_warps, &order_of_lanes}) {
      std::ranges::sort(*order);
      for (unsigned i = 0; i < order->size(); ++i) EXPECT_EQ((*order)[i], i);
    }
  }
  for (const auto* orders : {&blocks, &warps, &lanes}) EXPECT_GE(orders->size(), 3u);
}

TEST(CudaOnCpuDeathTest, KernelsThatWouldHangAbort) {
  const auto run_block = [](void (*body)()) { run(1, 64, {}, body); };
  EXPECT_DEATH(run_block([] { wait_for_block(threadIdx.x < 32 ? 1 : 2); }), "different barriers");
  EXPECT_DEATH(run_block([] {
                 if (threadIdx.x != 7) exchange_in_warp(0, 1);
               }),
               "lanes that have returned");
  EXPECT_DEATH(run_block([] { exchange_in_warp(0, threadIdx.x % 2); }), "different places");
  EXPECT_DEATH(run(1, 40, {}, [] { exchange_in_warp(0, 1); }), "has fewer");
  EXPECT_DEATH(run(0, 64, {}, [] {}), "empty grid");
}

// The grouped product itself is the library's: its row ends are all that a kernel of ours writes.
TEST(CudaOnCpu, MoreHostValuesThanOneLaunchCarries) {
  std::vector<int32_t> ends(600), written(601, -1);
  std::iota(ends.begin(), ends.end(), 7);
  steppe::kernels::cuda::put_host_values(written.data(), ends, "test", nullptr);
  EXPECT_EQ(written.back(), -1);
  written.pop_back();
  EXPECT_EQ(written, ends);
}

// Before Hopper, kernels go without clusters.
TEST(CudaOnCpu, ADeviceWithoutClusters) {
  using namespace steppe::kernels;
  compute_capability = 8;
  expect_device_agrees({at::ones({1}, at::kDouble), at::randn({5000})}, 1e-12,
                       [](const Tensors& t) { add_sum_of_squares(t[0], t[1]); });
  const auto x = at::randn({70, 40}), dy = at::randn({70, 40});
  expect_device_agrees({at::zeros({70, 40}), at::randn({40}), dy, x, at::randn({40}), at::rand({70}) + 0.5},
                       2e-5, [](const Tensors& t) {
                         rms_norm_backward({t[0], t[1], t[2], t[3], t[4], t[5]});
                       });
  compute_capability = 9;
}

}  // namespace
}  // namespace cuda_on_cpu
