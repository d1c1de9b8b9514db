// The watchdog's thread that talks to the store.
#include <algorithm>

#include "cli/launch/watchdog_state.h"
#include "steppe/base/error.h"

namespace steppe::launch {

using std::chrono::milliseconds;

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
  const Failure silent{
      .rank = next,
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
  if (mine.kind != FailureKind::kCause) {
    // Gloo notices a peer's death before anyone can say what killed it.
    if (!own_since) {
      own_since = std::chrono::steady_clock::now();
      before = read_heartbeats(*store, environment.world_size);
    }
    if (since(*own_since) < options.cause_limit) return;
    const auto silent = silent_ranks(before, read_heartbeats(*store, environment.world_size));
    if (!silent.empty() && silent.front() != environment.rank) {
      // A peer's wait for it and this process's own limit end at about the same time: either may come first.
      const std::string what =
          mine.kind == FailureKind::kLatePeer
              ? fmt::format("no progress for {:g} s (comm.timeout)", seconds(options.progress_limit))
              : "died, or lost its network, without a word";
      mine.message = fmt::format("{}; rank {} noticed: {}", what, mine.rank, mine.message);
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
  decide(report_failure(*store, no_progress(heartbeats, environment.rank, seconds(options.progress_limit))),
         true);
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
    if (!error.empty() && lost_why.empty()) {
      lost_at = awake.load();
      changed.notify_all();
    }
    lost_why = error;
    // A store that is gone has nothing to tell, and each try of it is a page of warnings.
    const bool hurry = error.empty() && (last || (own && !verdict));
    const milliseconds pause = hurry ? std::min(options.interval, milliseconds(50)) : options.interval;
    const bool had_own = own.has_value(), had_hang = hang_seen;
    changed.wait_for(lock, pause, [&] {
      return stopping || (finishing && !last) || own.has_value() != had_own || hang_seen != had_hang;
    });
  }
  talker_left = true;
  changed.notify_all();
}

}  // namespace steppe::launch
