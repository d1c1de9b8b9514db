// Communication between CPU processes: a c10d Gloo process group per communicator, so that one's transfers
// never queue behind another's. Transfers are sends and receives per peer over TCP; Gloo's own collectives
// are not used, since they copy or allocate.
#pragma once

#include <chrono>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "steppe/comm/communicator.h"

namespace c10d {
class ProcessGroupGloo;
}

namespace steppe::comm {

struct GlooOptions {
  std::chrono::milliseconds timeout{300'000};  // of connecting, and of each wait
  bool loopback = false;                       // all ranks share this machine's network
};

class GlooCommunicator final : public Communicator {
 public:
  // Collective over `ranks`, the global ranks of the group in order, of which this one is number `rank`.
  // `store` is shared by all groups: the name keeps them apart. Throws RuntimeFailure when the peers cannot
  // be reached in time.
  GlooCommunicator(std::string name, int rank, std::vector<int> ranks,
                   const c10::intrusive_ptr<c10d::Store>& store, const GlooOptions& options);
  ~GlooCommunicator() override;

  Pending exchange(std::span<const at::Tensor> sends, std::span<const at::Tensor> receives) override;
  std::vector<int64_t> all_gather_host(std::span<const int64_t> mine) override;
  void barrier() override;

 private:
  std::vector<int> ranks_;
  std::chrono::milliseconds timeout_;
  int next_tag_ = 0;
  c10::intrusive_ptr<c10d::ProcessGroupGloo> process_group_;
};

}  // namespace steppe::comm
