// Ends the job within seconds when a rank fails, dies or hangs.
//
// Two threads per process, apart from the collectives. One talks to the store over a connection of its own:
// every `interval` it publishes this rank's heartbeat with its progress, looks for a reported failure, and
// watches the heartbeat of the next rank in the ring (so each rank is watched by one; about four small
// requests per rank and interval). The other thread judges, and never touches the network, so that a store
// that stops answering is itself noticed. On a verdict the failing rank's message is printed first, then
// `abort` is called, then the process leaves by _exit, whatever the training thread is waiting for.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "cli/launch/environment.h"
#include "cli/launch/failure.h"

namespace steppe::launch {

struct WatchdogOptions {
  std::chrono::milliseconds interval{1000};
  // A rank whose heartbeat stands still this long is dead, or its machine is.
  std::chrono::milliseconds heartbeat_limit{30000};
  // comm.timeout: a training thread that reports no progress this long hangs.
  std::chrono::milliseconds progress_limit{300000};
  // A store that is gone: with its host, the job is over. Under torchrun, ranks get time to save first.
  std::chrono::milliseconds store_limit{5000};
  // How long a lost connection waits for its cause to be reported by the rank that has it.
  std::chrono::milliseconds cause_limit{3000};
  // How long `abort` may take.
  std::chrono::milliseconds abort_limit{3000};
  // How long a training thread that has called fail() may take to leave by itself.
  std::chrono::milliseconds exit_limit{10000};
  int exit_status = 1;
  // Says what ends the job. Default: stderr, on rank 0 and on the rank whose failure it is, unless --ranks
  // started this process (its parent speaks then).
  std::function<void(const std::string&)> print;
  // Aborts the process groups, writes the log out; called once, on a thread of its own, just before _exit.
  std::function<void(const Failure&)> abort;
};

// The limits for this launcher and `comm.timeout`.
WatchdogOptions watchdog_options(const LaunchEnvironment& environment,
                                 std::chrono::milliseconds comm_timeout);

class Watchdog {
 public:
  // `store` is make_store's. Starts watching at once; progress_limit runs from the first progress() on, so
  // that loading a model is no hang.
  Watchdog(const c10::intrusive_ptr<c10d::Store>& store, LaunchEnvironment environment,
           WatchdogOptions options);
  // Stops without waiting for the others.
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  // The training thread got this far; `where` must live forever (a literal). A few nanoseconds.
  void progress(std::int64_t step, const char* where) noexcept;

  // This rank fails: publishes the failure, writes the error file, and returns the job's cause, which is
  // another rank's when that one reported first, or when this one only lost its connection (waits up to
  // cause_limit for that). Prints nothing. Afterwards the caller has exit_limit to leave the process, and
  // SIGTERM is ignored.
  Failure fail(const std::exception& error) noexcept;

  // The rank is done. The rank that serves the store waits here until all are (at most `limit`), since the
  // others need it; those return at once. To be called last, after the process groups are gone. Idempotent.
  void stop(std::chrono::milliseconds limit = std::chrono::milliseconds(30000)) noexcept;

 private:
  struct State;
  std::shared_ptr<State> state_;  // shared with the threads: one that hangs in the store is left behind
};

// "rank 2 failed: message".
std::string failure_text(const Failure& failure);

}  // namespace steppe::launch
