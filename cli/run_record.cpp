#include "cli/run_record.h"

#include <cstdio>
#include <exception>
#include <filesystem>
#include <utility>

#include "cli/launch/watchdog.h"

namespace steppe::cli {

using launch::Launcher;
using launch::RunState;

namespace {

constexpr std::chrono::seconds kBetweenWrites{5};

}  // namespace

RunRecord::RunRecord(const launch::LaunchEnvironment& environment, std::string run_folder)
    : environment_(environment), run_folder_(std::move(run_folder)) {}

void RunRecord::begin(const Log& log) {
  const std::lock_guard lock(mutex_);
  log_ = &log;
  if (environment_.rank == 0 && std::filesystem::exists(run_folder_ + "/status.json")) {
    try {
      step_ = launch::read_status(run_folder_).step;  // until the run says where it goes on
    } catch (const std::exception&) {
      // Cut short or altered by somebody: it is written anew.
    }
  }
  if (!ended_) {
    write(RunState::kRunning, "");
  } else if (!failure_.empty()) {
    write(RunState::kFailed, failure_);  // another rank's, that came before the folder was this run's
  }
}

void RunRecord::finished_step(std::int64_t step) {
  const std::lock_guard lock(mutex_);
  step_ = step;
  if (!ended_ && Clock::now() - written_ > kBetweenWrites) write(RunState::kRunning, "");
}

void RunRecord::end(RunState state, const std::string& reason) {
  const std::lock_guard lock(mutex_);
  if (std::exchange(ended_, true)) return;
  write(state, reason);
}

void RunRecord::fail(const launch::Failure& failure) noexcept {
  const std::lock_guard lock(mutex_);
  if (std::exchange(ended_, true)) return;
  try {
    const bool parent_prints = environment_.launcher == Launcher::kLocal;
    const std::string message = failure_ = text(failure);
    if (log_ != nullptr) {
      if (parent_prints) {
        log_->record(LogLevel::kError, message);
      } else {
        log_->error("{}", message);
      }
    } else if (environment_.rank == 0 && !parent_prints) {
      std::fprintf(stderr, "error: %s\n", message.c_str());
    }
    // A rank 0 that is gone without a word has not printed it, nor has a launcher that shows error files.
    const bool rank_0_is_gone = failure.rank == 0 && failure.kind == launch::FailureKind::kConnection;
    if (environment_.rank != 0 && rank_0_is_gone && !parent_prints && environment_.error_file.empty())
      std::fprintf(stderr, "error: %s\n", message.c_str());
    write(RunState::kFailed, message);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
  }
}

std::string RunRecord::text(const launch::Failure& failure) const {
  return environment_.world_size == 1 ? failure.message : launch::failure_text(failure);
}

void RunRecord::write(RunState state, const std::string& reason) {
  if (environment_.rank != 0 || log_ == nullptr) return;
  launch::write_status(run_folder_, {state, reason, step_});
  written_ = Clock::now();
}

void fail_unfinished(const std::string& run_folder, const std::string& reason) noexcept {
  try {
    launch::RunStatus status;
    if (std::filesystem::exists(run_folder + "/status.json")) {
      status = launch::read_status(run_folder);
      if (status.state != RunState::kRunning) return;
    } else {
      // Another rank failed before rank 0 had begun the record.
      std::filesystem::create_directories(run_folder);
    }
    status.state = RunState::kFailed;
    status.reason = reason;
    launch::write_status(run_folder, status);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
  }
}

}  // namespace steppe::cli
