// Communication between the CPU processes of one machine: a pipe in shared memory per ordered pair of ranks
// (comm/shared_pipe.h). Small messages cost two copies and no system call unless somebody sleeps; what does
// not fit into a pipe is moved by a thread of the communicator's own, so that transfers go on while the
// caller computes.
//
// Against Gloo over loopback TCP: no sockets, and no event loop that polls while a sender writes.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "steppe/comm/communicator.h"

namespace steppe::comm {

class SharedMemoryCommunicator final : public Communicator {
 public:
  // Collective over `ranks`, the global ranks of the group in order, of which this one is number `rank`.
  // `store` is shared by all groups: the name keeps them apart. `timeout` holds for the meeting and for each
  // wait. Throws RuntimeFailure when the peers do not come in time, or share no memory with this process.
  SharedMemoryCommunicator(std::string name, int rank, std::vector<int> ranks,
                           const c10::intrusive_ptr<c10d::Store>& store, std::chrono::milliseconds timeout);
  ~SharedMemoryCommunicator() override;

  Pending exchange(std::span<const at::Tensor> sends, std::span<const at::Tensor> receives) override;
  std::vector<int64_t> all_gather_host(std::span<const int64_t> mine) override;
  void barrier() override;

 private:
  class Engine;
  std::shared_ptr<Engine> engine_;  // pending exchanges keep it
};

// Whether all of `world_size` ranks run on one machine as one user, and can map each other's memory.
// Collective over the store.
bool ranks_share_memory(int rank, int world_size, c10d::Store& store, std::chrono::milliseconds timeout);

}  // namespace steppe::comm
