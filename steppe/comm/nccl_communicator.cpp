#include "steppe/comm/nccl_communicator.h"

#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAFunctions.h>

#include <exception>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#include <utility>
#include <vector>

#include "steppe/base/error.h"
#include "steppe/comm/exchange_contract.h"

namespace steppe::comm {
namespace {

class NcclCommunicator final : public Communicator {
 public:
  NcclCommunicator(std::unique_ptr<Communicator> host, const c10::intrusive_ptr<c10d::Store>& store,
                   std::chrono::milliseconds timeout)
      : Communicator(host->name(), host->rank(), host->size()),
        host_(std::move(host)),
        nothing_(
            at::empty({0}, at::TensorOptions(at::kByte).device(at::kCUDA, c10::cuda::current_device()))) {
    auto options = c10d::ProcessGroupNCCL::Options::create();
    options->timeout = timeout;
    options->group_name = name();
    process_group_ = c10::make_intrusive<c10d::ProcessGroupNCCL>(
        c10::make_intrusive<c10d::PrefixStore>("nccl/" + name(), store), rank(), size(), options);
  }

  // Destruction alone would abort what is under way, at peers too. Where an error passes by, peers may be
  // gone: then that is right.
  ~NcclCommunicator() override {
    try {
      if (std::uncaught_exceptions() > 0)
        process_group_->abort();
      else
        process_group_->shutdown();
    } catch (const std::exception&) {  // the process group's own destructor does what is left
    }
  }
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  Pending exchange(std::span<const at::Tensor> sends, std::span<const at::Tensor> receives) override {
    check_exchange(*this, sends, receives, at::kCUDA);
    // One group of ncclSend and ncclRecv; empty tensors are skipped by it, on both sides.
    std::vector<at::Tensor> inputs, outputs;
    for (int peer = 0; peer < size(); ++peer) {
      const bool own = peer == rank();
      inputs.push_back(own || is_nothing(sends[peer]) ? nothing_ : sends[peer]);
      outputs.push_back(own || is_nothing(receives[peer]) ? nothing_ : receives[peer]);
    }
    auto work = call([&] { return process_group_->alltoall(outputs, inputs); });
    copy_own_pair(*this, sends, receives);
    wire_bytes_ += bytes_to_peers(*this, sends);
    return Pending([this, work, inputs, outputs] {
      const bool completed = call([&] { return work->wait(); });
      STEPPE_CHECK(completed, "[comm {}] rank {} of {}: the exchange was aborted", name(), rank(), size());
    });
  }

  std::vector<int64_t> all_gather_host(std::span<const int64_t> mine) override {
    wire_bytes_ += (size() - 1) * static_cast<int64_t>(mine.size_bytes());
    return host_->all_gather_host(mine);
  }

  void barrier() override {
    const int64_t token = 0;
    all_gather_host({&token, 1});
  }

 private:
  template <typename Function>
  auto call(Function&& function) -> decltype(function()) {
    try {
      return function();
    } catch (const std::exception& error) {
      throw RuntimeFailure(fmt::format("[comm {}] rank {} of {}: the exchange failed: {}", name(), rank(),
                                       size(), error.what()));
    }
  }

  std::unique_ptr<Communicator> host_;
  at::Tensor nothing_;
  c10::intrusive_ptr<c10d::ProcessGroupNCCL> process_group_;
};

}  // namespace

std::unique_ptr<Communicator> make_nccl_communicator(std::unique_ptr<Communicator> host,
                                                     const c10::intrusive_ptr<c10d::Store>& store,
                                                     std::chrono::milliseconds timeout) {
  return std::make_unique<NcclCommunicator>(std::move(host), store, timeout);
}

}  // namespace steppe::comm
