// Ranks of a dry run that do exchange what the host decides by: token counts, targets, routes. Tensors still
// go nowhere. Each rank is a thread; they meet in memory.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "steppe/comm/communicator.h"

namespace steppe::plan {

// Where the ranks of one group meet. Thread-safe.
class HostMeeting {
 public:
  explicit HostMeeting(int size) : parts_(size) {}
  // Everyone's values in rank order, once all have come. Throws RuntimeFailure when the meeting is given up.
  std::vector<int64_t> all_gather(int rank, std::span<const int64_t> mine);
  // One rank failed: the others must not wait for it.
  void give_up();

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::vector<int64_t>> parts_;
  std::vector<int64_t> together_;
  size_t arrived_ = 0;
  int64_t round_ = 0;
  bool given_up_ = false;
};

// Counts bytes as the real communicators do; tensors are on `meta`.
class MeetingCommunicator final : public comm::Communicator {
 public:
  MeetingCommunicator(std::string name, int rank, int size, std::shared_ptr<HostMeeting> meeting)
      : Communicator(std::move(name), rank, size), meeting_(std::move(meeting)) {}

  comm::Pending exchange(std::span<const at::Tensor> sends, std::span<const at::Tensor> receives) override;
  std::vector<int64_t> all_gather_host(std::span<const int64_t> mine) override;
  void barrier() override;

 private:
  std::shared_ptr<HostMeeting> meeting_;
};

}  // namespace steppe::plan
