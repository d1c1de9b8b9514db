#include "cli/launch/watchdog.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <mutex>
#include <thread>
#include <utility>

#include "cli/launch/exit_report.h"
#include "cli/launch/heartbeat.h"
#include "steppe/base/error.h"

namespace steppe::launch {

using std::chrono::milliseconds;

namespace {

using Clock = std::chrono::steady_clock;

milliseconds since(Clock::time_point begin) {
  return std::chrono::duration_cast<milliseconds>(Clock::now() - begin);
}

double seconds(milliseconds time) { return time.count() / 1000.0; }

}  // namespace

struct Watchdog::State {
  c10::intrusive_ptr<c10d::Store> store;  // the talker's own connection
  LaunchEnvironment environment;
  WatchdogOptions options;

  // Written by the training thread, read by the talker.
  std::atomic<std::int64_t> progress{0};
  std::atomic<std::int64_t> step{0};
  std::atomic<const char*> where{"start"};
  std::atomic<std::int64_t> progress_at{0};  // on the clock below
  // Milliseconds this process has been awake, kept by the judge. A job that the cluster suspends and
  // resumes (SIGSTOP, SIGCONT) has not hung meanwhile.
  std::atomic<std::int64_t> awake{0};

  std::mutex mutex;
  std::condition_variable changed;
  // All below under the mutex.
  bool stopping = false;          // threads leave at their next look
  bool finishing = false;         // the run is over; the host still waits for the others
  bool talker_left = false;
  bool hang_seen = false;
  std::optional<Failure> own;     // what fail() was told
  std::string own_details;
  std::int64_t failing_at = 0, hang_at = 0, contact_at = 0, lost_at = 0;
  std::string lost_why;           // the store's last error; empty while it answers
  std::optional<Failure> verdict;
  bool told_by_me = false;        // this rank found the verdict, so it prints it

  std::thread talker, judge;

  // The talker's thread.
  void talk();
  void exchange();
  void watch_next();
  void report_own();
  void report_hang();
  bool finish();
  void decide(const Failure& failure, bool by_me);
  Heartbeat heartbeat(bool done) const;
  // The judge's thread.
  void judge_until_stopped();
  std::optional<Failure> judgement(std::int64_t now);
  [[noreturn]] void leave(const Failure& failure);
  void print(const Failure& failure) const;
  void leave_error_file(const Failure& failure) const;

  // The talker's memory.
  std::int64_t beats = 0;
  int next = 0;
  std::int64_t next_beats = -1, next_changed_at = 0;
  std::optional<Clock::time_point> own_since;
  std::vector<std::optional<Heartbeat>> before;  // heartbeats when the connection was lost
  bool said_done = false;
};

// ---- talking to the store

Heartbeat Watchdog::State::heartbeat(bool done) const {
  return {beats, progress.load(std::memory_order_relaxed), step.load(std::memory_order_relaxed),
          where.load(std::memory_order_relaxed), done};
}

void Watchdog::State::decide(const Failure& failure, bool by_me) {
  const std::lock_guard lock(mutex);
  if (verdict) return;
  verdict = failure;
  told_by_me = by_me;
  changed.notify_all();
}

void Watchdog::State::watch_next() {
  const int world = environment.world_size;
  const std::int64_t now = awake.load();
  if (next == environment.rank) return;
  const auto seen = read_heartbeat(*store, next);
  if (seen && seen->done) {
    // It left as planned; whoever it watched is watched from here.
    next = (next + 1) % world;
    next_beats = -1;
    next_changed_at = now;
    return;
  }
  const std::int64_t its = seen ? seen->beats : -1;
  if (its != next_beats) {
    next_beats = its;
    next_changed_at = now;
  }
  if (now - next_changed_at <= options.heartbeat_limit.count()) return;
  const Failure silent{.rank = next,
                       .message = fmt::format("no heartbeat for {:g} s: the process or its machine is gone or "
                                              "stopped (noticed by rank {})",
                                              seconds(options.heartbeat_limit), environment.rank)};
  decide(report_failure(*store, silent), true);
}

void Watchdog::State::report_own() {
  Failure mine;
  {
    const std::lock_guard lock(mutex);
    if (!own || verdict) return;
    mine = *own;
  }
  if (mine.kind == FailureKind::kConnection) {
    // Gloo notices a peer's death before anyone can say what killed it.
    if (!own_since) {
      own_since = Clock::now();
      before = read_heartbeats(*store, environment.world_size);
    }
    if (since(*own_since) < options.cause_limit) return;
    const auto silent = silent_ranks(before, read_heartbeats(*store, environment.world_size));
    if (!silent.empty() && silent.front() != environment.rank) {
      mine.message = fmt::format("died, or lost its network, without a word; rank {} noticed: {}", mine.rank,
                                 mine.message);
      mine.rank = silent.front();
      mine.kind = FailureKind::kCause;
    }
  }
  decide(report_failure(*store, mine), true);
}

void Watchdog::State::report_hang() {
  {
    const std::lock_guard lock(mutex);
    if (!hang_seen || verdict) return;
  }
  const auto heartbeats = read_heartbeats(*store, environment.world_size);
  decide(report_failure(*store, no_progress(heartbeats, environment.rank, seconds(options.progress_limit))), true);
}

// True once this rank need not serve the store any longer.
bool Watchdog::State::finish() {
  if (!said_done) {
    publish(*store, environment.rank, heartbeat(/*done=*/true));
    store->add("done", 1);
    said_done = true;
  }
  return !hosts_store(environment) || store->add("done", 0) >= environment.world_size || find_failure(*store);
}

void Watchdog::State::exchange() {
  ++beats;
  publish(*store, environment.rank, heartbeat(/*done=*/false));
  // The failure that stands comes before this rank's own findings: it was first.
  if (const auto failure = find_failure(*store)) {
    decide(*failure, false);
    return;
  }
  report_own();
  report_hang();
  watch_next();
}

void Watchdog::State::talk() {
  next = (environment.rank + 1) % environment.world_size;
  bool finished = false;
  std::unique_lock lock(mutex);
  while (!stopping && !finished) {
    const bool last = finishing;
    std::string error;
    lock.unlock();
    try {
      if (last) {
        finished = finish();
      } else {
        exchange();
      }
    } catch (const std::exception& thrown) {
      error = describe(thrown).message;
      finished = last;  // nobody to say goodbye to
    }
    lock.lock();
    if (error.empty()) contact_at = awake.load();
    if (!error.empty() && lost_why.empty()) lost_at = awake.load();
    lost_why = error;
    const bool hurry = last || (own && !verdict);
    const milliseconds pause = hurry ? std::min(options.interval, milliseconds(50)) : options.interval;
    const bool had_own = own.has_value(), had_hang = hang_seen;
    changed.wait_for(lock, pause, [&] {
      return stopping || (finishing && !last) || own.has_value() != had_own || hang_seen != had_hang;
    });
  }
  talker_left = true;
  changed.notify_all();
}

// ---- judging, without the network

void Watchdog::State::print(const Failure& failure) const {
  const std::string text = failure_text(failure);
  if (options.print) {
    options.print(text);
    return;
  }
  const bool tells = environment.rank == 0 || failure.rank == environment.rank || told_by_me;
  if (environment.launcher == Launcher::kLocal || !tells) return;
  std::fprintf(stderr, "[launch] %s\n", text.c_str());
}

// torchrun takes the earliest error for the cause, by whole seconds: one that only repeats another rank's
// message must lie after it.
void Watchdog::State::leave_error_file(const Failure& failure) const {
  if (failure.rank == environment.rank) {
    write_error_file(environment.error_file, {failure.message, own_details, failure.timestamp});
  } else {
    write_error_file(environment.error_file, {failure_text(failure), "", failure.timestamp + 1});
  }
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
    return Failure{rank, fmt::format("the store at {} has not answered for {:g} s", where,
                                     seconds(options.heartbeat_limit)),
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
  return Failure{rank, fmt::format("no progress for {:g} s (comm.timeout), at step {} ({})",
                                   seconds(options.progress_limit), step.load(), where),
                 FailureKind::kCause, seconds_since_epoch()};
}

void Watchdog::State::judge_until_stopped() {
  const milliseconds tick = std::clamp(options.interval / 4, milliseconds(5), milliseconds(250));
  auto last = Clock::now();
  std::unique_lock lock(mutex);
  while (!stopping) {
    changed.wait_for(lock, tick, [&] { return stopping || (verdict && !own && !finishing); });
    if (stopping) return;
    awake += std::min(since(last), 4 * tick).count();
    last = Clock::now();
    const std::int64_t now = awake.load();
    std::optional<Failure> end;
    if (!own) {
      end = judgement(now);
    } else if (now - failing_at > options.exit_limit.count()) {
      end = verdict ? verdict : own;
    }
    if (!end || finishing) continue;
    told_by_me |= !verdict;
    lock.unlock();
    leave(*end);
  }
}

// ---- the training thread's side

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
  s.progress_at.store(std::max<std::int64_t>(1, s.awake.load(std::memory_order_relaxed)), std::memory_order_relaxed);
}

Failure Watchdog::fail(const std::exception& error) noexcept {
  State& s = *state_;
  const ErrorReport report = describe(error);
  Failure mine{s.environment.rank, report.message,
               is_connection_loss(error) ? FailureKind::kConnection : FailureKind::kCause, report.timestamp};
  std::unique_lock lock(s.mutex);
  s.own = mine;
  s.own_details = report.details;
  s.failing_at = s.awake.load();
  s.changed.notify_all();
  const milliseconds patience = s.options.cause_limit + 2 * s.options.interval + milliseconds(2000);
  s.changed.wait_for(lock, patience, [&s] { return s.verdict.has_value() || !s.lost_why.empty() || s.talker_left; });
  const Failure cause = s.verdict.value_or(mine);
  lock.unlock();
  s.leave_error_file(cause);
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
