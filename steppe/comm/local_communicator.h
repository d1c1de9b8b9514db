// The communicator of a group of one: no process group, no store, no thread.
#pragma once

#include <string>

#include "steppe/comm/communicator.h"

namespace steppe::comm {

class LocalCommunicator final : public Communicator {
 public:
  LocalCommunicator(std::string name, at::DeviceType device)
      : Communicator(std::move(name), 0, 1), device_(device) {}

  Pending exchange(std::span<const at::Tensor> sends, std::span<const at::Tensor> receives) override;
  std::vector<int64_t> all_gather_host(std::span<const int64_t> mine) override {
    return {mine.begin(), mine.end()};
  }
  void barrier() override {}

 private:
  at::DeviceType device_;
};

}  // namespace steppe::comm
