// What the tests of this folder share: one communicator over all ranks of run_ranks, and counted tensors.
#pragma once

#include <ATen/ATen.h>

#include <chrono>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "steppe/comm/gloo_communicator.h"
#include "steppe/comm/local_communicator.h"
#include "steppe/comm/rank_threads.h"
#include "steppe/comm/shared_memory_communicator.h"

namespace steppe::comm {

inline constexpr int kWorldSizes[] = {1, 2, 3, 4, 7};

enum class Transport { kSharedMemory, kGloo };

inline std::unique_ptr<Communicator> make_world(int rank, int world_size,
                                                const c10::intrusive_ptr<c10d::Store>& store,
                                                std::chrono::milliseconds timeout = std::chrono::minutes(5),
                                                std::string name = "world",
                                                Transport transport = Transport::kSharedMemory) {
  if (world_size == 1) return std::make_unique<LocalCommunicator>(std::move(name), at::kCPU);
  std::vector<int> ranks(static_cast<size_t>(world_size));
  std::iota(ranks.begin(), ranks.end(), 0);
  if (transport == Transport::kSharedMemory) {
    return std::make_unique<SharedMemoryCommunicator>(std::move(name), rank, ranks, store, timeout);
  }
  return std::make_unique<GlooCommunicator>(std::move(name), rank, ranks, store,
                                            GlooOptions{.timeout = timeout, .loopback = true});
}

// [rows, width], distinct per seed; small enough to be exact in bf16.
inline at::Tensor numbered(int64_t rows, int64_t width, int64_t seed, at::ScalarType dtype) {
  return at::arange(seed * 31, seed * 31 + rows * width, at::kLong)
      .remainder(251)
      .view({rows, width})
      .to(dtype);
}

}  // namespace steppe::comm
