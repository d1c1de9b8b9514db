#include "steppe/comm/shape_only_communicator.h"

#include "steppe/base/error.h"
#include "steppe/comm/exchange_contract.h"

namespace steppe::comm {

ShapeOnlyCommunicator::ShapeOnlyCommunicator(std::string name, int rank, int size)
    : Communicator(std::move(name), rank, size) {
  STEPPE_CHECK_VALUE(rank >= 0 && rank < size, "[comm {}] rank must be in [0, {}), got {}", this->name(),
                     size, rank);
}

Pending ShapeOnlyCommunicator::exchange(std::span<const at::Tensor> sends,
                                        std::span<const at::Tensor> receives) {
  check_exchange(*this, sends, receives, at::kMeta);
  wire_bytes_ += bytes_to_peers(*this, sends);
  return Pending();
}

std::vector<int64_t> ShapeOnlyCommunicator::all_gather_host(std::span<const int64_t> mine) {
  std::vector<int64_t> all;
  all.reserve(mine.size() * static_cast<size_t>(size()));
  for (int peer = 0; peer < size(); ++peer) all.insert(all.end(), mine.begin(), mine.end());
  wire_bytes_ += (size() - 1) * static_cast<int64_t>(mine.size_bytes());
  return all;
}

void ShapeOnlyCommunicator::barrier() {
  const int64_t token = 0;
  all_gather_host({&token, 1});
}

}  // namespace steppe::comm
