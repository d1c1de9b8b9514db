#include "steppe/comm/exchange_contract.h"

#include <ATen/ops/from_blob.h>

#include <string_view>

#include "steppe/base/error.h"

namespace steppe::comm {
namespace {

void check_list(const Communicator& group, std::string_view list, std::span<const at::Tensor> tensors,
                at::DeviceType device) {
  STEPPE_CHECK_VALUE(tensors.size() == static_cast<size_t>(group.size()),
                     "[comm {}] exchange needs {} with one entry for each of {} ranks, got {}", group.name(),
                     list, group.size(), tensors.size());
  for (size_t peer = 0; peer < tensors.size(); ++peer) {
    const at::Tensor& tensor = tensors[peer];
    if (is_nothing(tensor)) continue;
    STEPPE_CHECK_VALUE(tensor.device().type() == device, "[comm {}] {}[{}] must be on {}, got {}",
                       group.name(), list, peer, at::DeviceTypeName(device, /*lower_case=*/true),
                       tensor.device().str());
    STEPPE_CHECK_VALUE(tensor.is_contiguous(), "[comm {}] {}[{}] must be contiguous, got strides of a view",
                       group.name(), list, peer);
  }
}

}  // namespace

void check_exchange(const Communicator& group, std::span<const at::Tensor> sends,
                    std::span<const at::Tensor> receives, at::DeviceType device) {
  check_list(group, "sends", sends, device);
  check_list(group, "receives", receives, device);
  const at::Tensor& send = sends[group.rank()];
  const at::Tensor& receive = receives[group.rank()];
  if (is_nothing(send) && is_nothing(receive)) return;
  const int64_t sent = send.defined() ? send.numel() : 0;
  const int64_t received = receive.defined() ? receive.numel() : 0;
  STEPPE_CHECK_VALUE(sent == received,
                     "[comm {}] the pair of rank {} itself must match: sends {} elements, receives {}",
                     group.name(), group.rank(), sent, received);
  STEPPE_CHECK_VALUE(send.scalar_type() == receive.scalar_type(),
                     "[comm {}] the pair of rank {} itself must match: sends {}, receives {}", group.name(),
                     group.rank(), at::toString(send.scalar_type()), at::toString(receive.scalar_type()));
}

int64_t bytes_to_peers(const Communicator& group, std::span<const at::Tensor> sends) {
  int64_t bytes = 0;
  for (int peer = 0; peer < group.size(); ++peer) {
    if (peer == group.rank() || is_nothing(sends[peer])) continue;
    bytes += sends[peer].numel() * static_cast<int64_t>(sends[peer].element_size());
  }
  return bytes;
}

void copy_own_pair(const Communicator& group, std::span<const at::Tensor> sends,
                   std::span<const at::Tensor> receives) {
  const at::Tensor& send = sends[group.rank()];
  const at::Tensor& receive = receives[group.rank()];
  if (is_nothing(send) || send.const_data_ptr() == receive.const_data_ptr()) return;
  // Flat views: the two may differ in shape.
  receive.view(-1).copy_(send.view(-1), /*non_blocking=*/true);
}

std::vector<int64_t> all_gather_by_exchange(Communicator& group, std::span<const int64_t> mine) {
  const auto length = static_cast<int64_t>(mine.size());
  std::vector<int64_t> all(mine.size() * static_cast<size_t>(group.size()));
  // from_blob: plain host vectors, which no ledger sees.
  std::vector<at::Tensor> sends, receives;
  for (int peer = 0; peer < group.size(); ++peer) {
    sends.push_back(at::from_blob(const_cast<int64_t*>(mine.data()), {length}, at::kLong));
    receives.push_back(at::from_blob(all.data() + peer * length, {length}, at::kLong));
  }
  group.exchange(sends, receives).wait();
  return all;
}

}  // namespace steppe::comm
