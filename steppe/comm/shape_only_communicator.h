// The dry run's communicator: checks its arguments and counts the bytes as the real ones do, moves nothing,
// allocates nothing, knows no peer. Tensors are on meta.
#pragma once

#include <string>

#include "steppe/comm/communicator.h"

namespace steppe::comm {

class ShapeOnlyCommunicator final : public Communicator {
 public:
  ShapeOnlyCommunicator(std::string name, int rank, int size);

  Pending exchange(std::span<const at::Tensor> sends, std::span<const at::Tensor> receives) override;
  std::vector<int64_t> all_gather_host(std::span<const int64_t> mine) override;
  void barrier() override;
};

}  // namespace steppe::comm
