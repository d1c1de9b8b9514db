// A PyTorch process group as a Communicator, for the operators that PyTorch programs call. On CPU tensors, by
// sends and receives of the group's own backend (Gloo, MPI).
#pragma once

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "steppe/comm/communicator.h"

namespace steppe::ops {

class ProcessGroupCommunicator final : public comm::Communicator {
 public:
  explicit ProcessGroupCommunicator(c10::intrusive_ptr<c10d::ProcessGroup> group);

  comm::Pending exchange(std::span<const at::Tensor> sends, std::span<const at::Tensor> receives) override;
  std::vector<int64_t> all_gather_host(std::span<const int64_t> mine) override;
  void barrier() override;

 private:
  c10::intrusive_ptr<c10d::ProcessGroup> group_;
  int next_tag_ = 0;
};

}  // namespace steppe::ops
