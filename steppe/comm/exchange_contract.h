// What Communicators have in common: what they do with the arguments of exchange() before they move anything.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "steppe/comm/communicator.h"

namespace steppe::comm {

inline bool is_nothing(const at::Tensor& tensor) {
  return !tensor.defined() || tensor.numel() == 0;
}

// Throws ValueError naming the communicator, the argument and the peer.
void check_exchange(const Communicator& group, std::span<const at::Tensor> sends,
                    std::span<const at::Tensor> receives, at::DeviceType device);

int64_t bytes_to_peers(const Communicator& group, std::span<const at::Tensor> sends);

// receives[rank] = sends[rank], unless they are the same memory.
void copy_own_pair(const Communicator& group, std::span<const at::Tensor> sends,
                   std::span<const at::Tensor> receives);

// Communicator::all_gather_host by one exchange, for those on a CPU.
std::vector<int64_t> all_gather_by_exchange(Communicator& group, std::span<const int64_t> mine);

}  // namespace steppe::comm
