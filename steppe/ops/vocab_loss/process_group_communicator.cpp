#include "steppe/ops/vocab_loss/process_group_communicator.h"

#include <torch/csrc/distributed/c10d/Work.hpp>
#include <utility>

#include "steppe/base/error.h"
#include "steppe/comm/exchange_contract.h"

namespace steppe::ops {
namespace {

using Works = std::vector<c10::intrusive_ptr<c10d::Work>>;

// Beyond the tags that programs use for their own sends.
constexpr int kFirstTag = 1 << 20, kNumTags = 1 << 20;

}  // namespace

ProcessGroupCommunicator::ProcessGroupCommunicator(c10::intrusive_ptr<c10d::ProcessGroup> group)
    : Communicator("process group", group->getRank(), group->getSize()), group_(std::move(group)) {}

comm::Pending ProcessGroupCommunicator::exchange(std::span<const at::Tensor> sends,
                                                 std::span<const at::Tensor> receives) {
  comm::check_exchange(*this, sends, receives, at::kCPU);
  const int tag = kFirstTag + std::exchange(next_tag_, (next_tag_ + 1) % kNumTags);
  auto works = std::make_shared<Works>();
  try {
    for (int step = 1; step < size(); ++step) {
      const int peer = (rank() - step + size()) % size();
      if (comm::is_nothing(receives[peer])) continue;
      std::vector<at::Tensor> one = {receives[peer]};
      works->push_back(group_->recv(one, peer, tag));
    }
    for (int step = 1; step < size(); ++step) {
      const int peer = (rank() + step) % size();
      if (comm::is_nothing(sends[peer])) continue;
      std::vector<at::Tensor> one = {sends[peer]};
      works->push_back(group_->send(one, peer, tag));
    }
  } catch (const std::exception& error) {
    throw RuntimeFailure(
        fmt::format("[process group] rank {} of {} cannot exchange: {}", rank(), size(), error.what()));
  }
  comm::copy_own_pair(*this, sends, receives);
  wire_bytes_ += comm::bytes_to_peers(*this, sends);
  const auto failure = fmt::format("[process group] rank {} of {} lost a peer", rank(), size());
  return comm::Pending([works, failure] {
    const Works waiting = std::exchange(*works, {});
    try {
      for (const auto& work : waiting) work->wait();
    } catch (const std::exception& error) {
      throw RuntimeFailure(fmt::format("{}: {}", failure, error.what()));
    }
  });
}

std::vector<int64_t> ProcessGroupCommunicator::all_gather_host(std::span<const int64_t> mine) {
  return comm::all_gather_by_exchange(*this, mine);
}

void ProcessGroupCommunicator::barrier() {
  const int64_t token = 0;
  all_gather_host({&token, 1});
}

}  // namespace steppe::ops
