// What a run leaves behind for whoever started it: status.json in the run's folder, and the error file that
// torchrun (and our own --ranks) shows as the root cause.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace steppe::launch {

// Writes beside, syncs, renames and syncs the folder: a reader sees the old text or the new, never a part,
// also after a crash. Throws RuntimeFailure naming the path and the system's reason.
void write_atomically(const std::string& path, const std::string& text);

enum class RunState { kRunning, kFinished, kStopped, kFailed };

struct RunStatus {
  RunState state = RunState::kRunning;
  std::string reason;  // why it stopped or failed: "SIGTERM", "rank 2: …"; empty otherwise
  std::int64_t step = 0;
};

// RUN/status.json: {"state": "running|finished|stopped|failed", "reason": …, "step": …}. torchrun exits 1
// after SIGTERM even if every rank saved and exited 0; requeue scripts read this file instead.
void write_status(const std::string& run_folder, const RunStatus& status);
// Throws RuntimeFailure when there is none or it cannot be read.
RunStatus read_status(const std::string& run_folder);

struct ErrorReport {
  std::string message;
  std::string details = {};    // what people see under Root Cause; the message, where empty
  std::int64_t timestamp = 0;  // seconds since the epoch; torchrun takes the earliest for the cause
};

// Quietly does nothing for an empty path. Never throws: it runs while something else is failing.
bool write_error_file(const std::string& path, const ErrorReport& report) noexcept;
// Nothing when the file is missing, empty or of another form.
std::optional<ErrorReport> read_error_file(const std::string& path);

std::int64_t seconds_since_epoch();

}  // namespace steppe::launch
