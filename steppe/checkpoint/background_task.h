// One task at a time on a thread of its own, which the owner looks after without waiting.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

namespace steppe::checkpoint {

class BackgroundTask {
 public:
  enum class Status { kIdle, kBusy, kDone, kFailed };

  BackgroundTask() = default;
  ~BackgroundTask();  // waits for the task
  BackgroundTask(const BackgroundTask&) = delete;
  BackgroundTask& operator=(const BackgroundTask&) = delete;

  // Must not be busy.
  void start(std::function<void()> task);
  Status status() const;
  // Why the last task failed; empty otherwise.
  std::string failure() const;
  // Returns once nothing is under way, or after the time.
  void wait_for(std::chrono::milliseconds time) const;
  void reset();  // to idle; must not be busy

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable ended_;
  Status status_ = Status::kIdle;
  std::string failure_;
  std::thread thread_;
};

}  // namespace steppe::checkpoint
