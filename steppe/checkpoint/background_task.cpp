#include "steppe/checkpoint/background_task.h"

#include <exception>
#include <utility>

#include "steppe/base/error.h"

namespace steppe::checkpoint {

BackgroundTask::~BackgroundTask() {
  if (thread_.joinable()) thread_.join();
}

void BackgroundTask::start(std::function<void()> task) {
  STEPPE_ASSERT(status() != Status::kBusy, "[checkpoint] a second task while one is under way");
  if (thread_.joinable()) thread_.join();
  {
    const std::lock_guard lock(mutex_);
    status_ = Status::kBusy;
    failure_.clear();
  }
  thread_ = std::thread([this, task = std::move(task)] {
    std::string failure;
    try {
      task();
    } catch (const std::exception& error) {
      failure = error.what();
      if (failure.empty()) failure = "for no stated reason";
    }
    const std::lock_guard lock(mutex_);
    status_ = failure.empty() ? Status::kDone : Status::kFailed;
    failure_ = std::move(failure);
    ended_.notify_all();
  });
}

BackgroundTask::Status BackgroundTask::status() const {
  const std::lock_guard lock(mutex_);
  return status_;
}

std::string BackgroundTask::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

void BackgroundTask::wait_for(std::chrono::milliseconds time) const {
  std::unique_lock lock(mutex_);
  ended_.wait_for(lock, time, [this] { return status_ != Status::kBusy; });
}

void BackgroundTask::reset() {
  STEPPE_ASSERT(status() != Status::kBusy, "[checkpoint] a task is still under way");
  const std::lock_guard lock(mutex_);
  status_ = Status::kIdle;
}

}  // namespace steppe::checkpoint
