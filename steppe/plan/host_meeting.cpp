#include "steppe/plan/host_meeting.h"

#include "steppe/base/error.h"
#include "steppe/comm/exchange_contract.h"

namespace steppe::plan {

std::vector<int64_t> HostMeeting::all_gather(int rank, std::span<const int64_t> mine) {
  std::unique_lock lock(mutex_);
  parts_[rank].assign(mine.begin(), mine.end());
  const int64_t round = round_;
  if (++arrived_ == parts_.size()) {
    together_.clear();
    for (const auto& part : parts_) together_.insert(together_.end(), part.begin(), part.end());
    arrived_ = 0;
    ++round_;
    changed_.notify_all();
  }
  changed_.wait(lock, [&] { return round_ != round || given_up_; });
  STEPPE_CHECK(round_ != round, "[plan] another rank's dry run failed");
  // Nobody can complete the next round before this rank has come to it.
  return together_;
}

void HostMeeting::give_up() {
  const std::lock_guard lock(mutex_);
  given_up_ = true;
  changed_.notify_all();
}

comm::Pending MeetingCommunicator::exchange(std::span<const at::Tensor> sends,
                                            std::span<const at::Tensor> receives) {
  comm::check_exchange(*this, sends, receives, at::kMeta);
  wire_bytes_ += comm::bytes_to_peers(*this, sends);
  return {};
}

std::vector<int64_t> MeetingCommunicator::all_gather_host(std::span<const int64_t> mine) {
  wire_bytes_ += (size() - 1) * static_cast<int64_t>(mine.size_bytes());
  return meeting_->all_gather(rank(), mine);
}

void MeetingCommunicator::barrier() {
  const int64_t token = 0;
  all_gather_host({&token, 1});
}

}  // namespace steppe::plan
