#include "cli/launch/watchdog.h"

#include <algorithm>
#include <csignal>
#include <utility>

#include "cli/launch/exit_report.h"
#include "cli/launch/watchdog_state.h"
#include "steppe/base/error.h"

namespace steppe::launch {

using std::chrono::milliseconds;

WatchdogOptions watchdog_options(const LaunchEnvironment& environment, milliseconds comm_timeout) {
  WatchdogOptions options;
  options.progress_limit = comm_timeout;
  // A rank-0 or --ranks store dies with the job; torchrun's agent may die alone (SIGUSR1), and its ranks,
  // who got SIGTERM from the kernel, then save.
  if (environment.launcher == Launcher::kTorchrun) options.store_limit = milliseconds(30000);
  return options;
}

Watchdog::Watchdog(const c10::intrusive_ptr<c10d::Store>& store, LaunchEnvironment environment,
                   WatchdogOptions options)
    : state_(std::make_shared<State>()) {
  state_->store = store->clone();
  state_->environment = std::move(environment);
  state_->options = std::move(options);
  state_->talker = std::thread([state = state_] { state->talk(); });
  state_->judge = std::thread([state = state_] { state->judge_until_stopped(); });
}

Watchdog::~Watchdog() {
  State& s = *state_;
  std::unique_lock lock(s.mutex);
  if (s.own && !s.stopping) {
    // The process is on its way out with a failure; the judge sees to it that it arrives. What the
    // callbacks refer to may be gone by then.
    s.options.abort = nullptr;
    lock.unlock();
    s.judge.detach();
    s.talker.detach();
    return;
  }
  s.stopping = true;
  s.changed.notify_all();
  s.changed.wait_for(lock, milliseconds(2000), [&s] { return s.talker_left; });
  const bool talker_left = s.talker_left;
  lock.unlock();
  if (s.judge.joinable()) s.judge.join();
  if (talker_left) {
    s.talker.join();
  } else {
    s.talker.detach();  // waits for a store that does not answer
  }
}

void Watchdog::progress(std::int64_t step, const char* where) noexcept {
  State& s = *state_;
  s.step.store(step, std::memory_order_relaxed);
  s.where.store(where, std::memory_order_relaxed);
  s.progress.fetch_add(1, std::memory_order_relaxed);
  // Zero means "not begun".
  s.progress_at.store(std::max<std::int64_t>(1, s.awake.load(std::memory_order_relaxed)),
                      std::memory_order_relaxed);
}

Failure Watchdog::fail(const std::exception& error) noexcept {
  State& s = *state_;
  // Launchers send SIGTERM to the ranks that are left once one has gone; this one leaves by itself, with its
  // own status, and the judge sees to it.
  std::signal(SIGTERM, SIG_IGN);
  const ErrorReport report = describe(error);
  Failure mine{s.environment.rank, report.message, kind_of(error), report.timestamp};
  std::unique_lock lock(s.mutex);
  s.own = mine;
  s.own_details = report.details;
  s.failing_at = s.awake.load();
  s.changed.notify_all();
  const milliseconds patience = s.options.cause_limit + 2 * s.options.interval + milliseconds(2000);
  s.changed.wait_for(lock, patience,
                     [&s] { return s.verdict.has_value() || !s.lost_why.empty() || s.talker_left; });
  // A store that rank 0 serves goes with it.
  if (!s.verdict && !s.lost_why.empty() && mine.kind != FailureKind::kCause && !s.environment.agent_store &&
      !hosts_store(s.environment)) {
    mine.message = fmt::format("died, or lost its network, without a word; rank {} noticed: {}", mine.rank,
                               mine.message);
    mine.rank = 0;
    mine.kind = FailureKind::kConnection;
  }
  const Failure cause = s.verdict.value_or(mine);
  lock.unlock();
  s.leave_error_file(cause);
  s.let_others_read();
  return cause;
}

void Watchdog::stop(milliseconds limit) noexcept {
  State& s = *state_;
  std::unique_lock lock(s.mutex);
  if (s.finishing || s.own) return;
  s.finishing = true;
  s.changed.notify_all();
  if (!hosts_store(s.environment)) limit = std::min(limit, 2 * s.options.interval + milliseconds(2000));
  s.changed.wait_for(lock, limit, [&s] { return s.talker_left; });
  s.stopping = true;
  s.changed.notify_all();
}

std::string failure_text(const Failure& failure) {
  return fmt::format("rank {} failed: {}", failure.rank, failure.message);
}

}  // namespace steppe::launch
