// One job at a time in a run's folder: two would write the same metrics and checkpoints.
#pragma once

#include <chrono>
#include <string>

namespace steppe::cli {

// Holds RUN/.lock as long as it lives; the kernel lets go of it when the process ends, however it ends. Where
// the file system has no locks, nothing is held.
class RunLock {
 public:
  // Waits up to `patience` for a job that is on its way out. RuntimeFailure naming the folder and who is in
  // it when it stays.
  explicit RunLock(const std::string& run_folder, std::chrono::milliseconds patience = kPatience);
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

  // As above, of a folder that may not be a run's at all: nothing is made there, nothing is held afterwards.
  static void check_free(const std::string& run_folder, std::chrono::milliseconds patience = kPatience);

 private:
  static constexpr std::chrono::milliseconds kPatience{10'000};
  int file_ = -1;
};

}  // namespace steppe::cli
