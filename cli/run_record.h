// What one rank says of its run to whoever started it: RUN/status.json, kept by rank 0, and the failure that
// ends the job, told once however many threads come upon it.
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>

#include "cli/launch/environment.h"
#include "cli/launch/exit_report.h"
#include "cli/launch/failure.h"
#include "steppe/base/log.h"

namespace steppe::cli {

class RunRecord {
 public:
  RunRecord(const launch::LaunchEnvironment& environment, std::string run_folder);

  // The run's folder is this run's from now on: before, nothing is written there. `log` lives as long as
  // this.
  void begin(const Log& log);
  // A step is finished. Its number reaches status.json within seconds, at the next step; the last one at the
  // end.
  void finished_step(std::int64_t step);
  // Finished, or stopped by what `reason` says.
  void end(launch::RunState state, const std::string& reason);
  // Rank 0 prints it, unless a parent does that for all ranks; the others, where rank 0 died without a word.
  // Every rank's log has it.
  void fail(const launch::Failure& failure) noexcept;

 private:
  using Clock = std::chrono::steady_clock;

  std::string text(const launch::Failure& failure) const;
  void write(launch::RunState state, const std::string& reason);

  const launch::LaunchEnvironment& environment_;
  std::string run_folder_;

  std::mutex mutex_;  // all below; the watchdog calls fail()
  const Log* log_ = nullptr;
  bool ended_ = false;
  std::string failure_;  // what ended it, if that was one
  std::int64_t step_ = 0;
  Clock::time_point written_;
};

// For the parent of all ranks, once they are gone: a status that still says "running", or none at all, was
// left by a rank 0 that could not say more.
void fail_unfinished(const std::string& run_folder, const std::string& reason) noexcept;

}  // namespace steppe::cli
