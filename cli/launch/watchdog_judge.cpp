// The watchdog's thread that judges and ends the process; it never touches the network.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <future>
#include <mutex>
#include <thread>
#include <utility>

#include "cli/launch/exit_report.h"
#include "cli/launch/watchdog_state.h"
#include "steppe/base/error.h"

namespace steppe::launch {

using std::chrono::milliseconds;

void Watchdog::State::print(const Failure& failure) const {
  const std::string text = failure_text(failure);
  if (options.print) {
    options.print(text);
    return;
  }
  // Whoever found out speaks for a rank 0 that cannot.
  const bool tells =
      environment.rank == 0 || failure.rank == environment.rank || (told_by_me && failure.rank == 0);
  if (environment.launcher == Launcher::kLocal || !tells) return;
  std::fprintf(stderr, "[launch] %s\n", text.c_str());
}

// torchrun takes the earliest error for the cause, by whole seconds: one that only repeats another rank's
// message must lie after it.
void Watchdog::State::leave_error_file(const Failure& failure) {
  if (failure.rank != environment.rank) {
    write_error_file(environment.error_file, {failure_text(failure), "", failure.timestamp + 1});
    return;
  }
  std::unique_lock lock(mutex);
  const ErrorReport report{failure.message, own_details, failure.timestamp};
  lock.unlock();
  write_error_file(environment.error_file, report);
}

void Watchdog::State::let_others_read() const {
  if (hosts_store(environment)) std::this_thread::sleep_for(2 * options.interval);
}

void Watchdog::State::leave(const Failure& failure) {
  print(failure);
  leave_error_file(failure);
  std::function<void(const Failure&)> abort;
  {
    const std::lock_guard lock(mutex);
    abort = options.abort;
  }
  if (abort) {
    std::promise<void> promise;
    auto done = promise.get_future();
    std::thread([abort, failure, promise = std::move(promise)]() mutable {
      try {
        abort(failure);
      } catch (const std::exception& error) {
        std::fprintf(stderr, "[launch] while aborting: %s\n", error.what());
      }
      promise.set_value();
    }).detach();
    done.wait_for(options.abort_limit);
  }
  let_others_read();
  // Not exit(): destructors would wait for threads that hang.
  ::_exit(options.exit_status);
}

// Under the mutex. What this process can tell by itself.
std::optional<Failure> Watchdog::State::judgement(std::int64_t now) {
  if (verdict) return verdict;
  if (finishing) return std::nullopt;
  const int rank = environment.rank;
  const std::string where = fmt::format("{}:{}", environment.master_addr, environment.master_port);
  if (!lost_why.empty() && now - lost_at > options.store_limit.count()) {
    return Failure{environment.agent_store ? rank : 0,
                   fmt::format("lost the store at {}: what serves it, {}, is gone ({})", where,
                               environment.agent_store ? "the launcher's agent" : "rank 0", lost_why),
                   FailureKind::kConnection, seconds_since_epoch()};
  }
  if (lost_why.empty() && now - contact_at > (options.heartbeat_limit + options.interval).count()) {
    return Failure{
        rank,
        fmt::format("the store at {} has not answered for {:g} s", where, seconds(options.heartbeat_limit)),
        FailureKind::kConnection, seconds_since_epoch()};
  }
  const std::int64_t begun = progress_at.load();
  if (begun == 0 || now - begun <= options.progress_limit.count()) return std::nullopt;
  if (!hang_seen) {
    hang_seen = true;
    hang_at = now;
    changed.notify_all();
  }
  // The talker knows more about the others; without it, say what is known here.
  if (now - hang_at <= (2 * options.interval + milliseconds(2000)).count()) return std::nullopt;
  return Failure{rank,
                 fmt::format("no progress for {:g} s (comm.timeout), at step {} ({})",
                             seconds(options.progress_limit), step.load(), where),
                 FailureKind::kCause, seconds_since_epoch()};
}

void Watchdog::State::judge_until_stopped() {
  const milliseconds tick = std::clamp(options.interval / 4, milliseconds(5), milliseconds(250));
  auto last = std::chrono::steady_clock::now();
  std::unique_lock lock(mutex);
  while (!stopping) {
    changed.wait_for(lock, tick, [&] { return stopping || (verdict && !own && !finishing); });
    if (stopping) return;
    awake += std::min(since(last), 4 * tick).count();
    last = std::chrono::steady_clock::now();
    const std::int64_t now = awake.load();
    std::optional<Failure> end;
    if (!own) {
      end = judgement(now);
    } else if (now - failing_at > options.exit_limit.count()) {
      end = verdict ? verdict : own;
    }
    if (!end || finishing) continue;
    if (!verdict) {
      verdict = end;  // the talker cannot find another now
      told_by_me = true;
    }
    lock.unlock();
    leave(*end);
  }
}

}  // namespace steppe::launch
