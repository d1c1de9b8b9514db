#include "cli/launch/signals.h"

#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <string>

#include "steppe/base/error.h"

namespace steppe::launch {
namespace {

// A handler reaches nothing but statics; lock-free atomics are async-signal-safe.
std::atomic<int> first_signal{0};
std::atomic<std::int64_t> first_ns{0};
std::atomic<std::int64_t> one_request_ns{0};
std::atomic<bool> alive{false};
static_assert(std::atomic<std::int64_t>::is_always_lock_free && std::atomic<int>::is_always_lock_free);

std::int64_t now_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1'000'000'000LL + now.tv_nsec;
}

void on_signal(int signal) {
  const std::int64_t now = now_ns();
  std::int64_t never = 0;
  // The time is claimed before the flag is raised: whoever sees the flag sees the time.
  if (first_ns.compare_exchange_strong(never, now)) {
    first_signal.store(signal);
    return;
  }
  if (now - first_ns.load() < one_request_ns.load()) return;
  constexpr char kText[] = "\n[launch] asked to stop a second time: leaving at once\n";
  [[maybe_unused]] const ssize_t wrote = ::write(STDERR_FILENO, kText, sizeof(kText) - 1);
  ::_exit(128 + signal);
}

void install(int signal, struct sigaction* old) {
  sigaction(signal, nullptr, old);
  if (old->sa_handler == SIG_IGN) return;
  struct sigaction action {};
  action.sa_handler = on_signal;
  // Each blocks the other, so that the handler does not interrupt itself.
  sigemptyset(&action.sa_mask);
  sigaddset(&action.sa_mask, SIGTERM);
  sigaddset(&action.sa_mask, SIGINT);
  action.sa_flags = SA_RESTART;
  sigaction(signal, &action, nullptr);
}

}  // namespace

SignalFlag::SignalFlag(std::chrono::milliseconds one_request) {
  STEPPE_ASSERT(!alive.exchange(true), "[launch] a second SignalFlag while one lives");
  first_signal = 0;
  first_ns = 0;
  one_request_ns = std::chrono::nanoseconds(one_request).count();
  install(SIGTERM, &old_term_);
  install(SIGINT, &old_int_);
  sigset_t both;
  sigemptyset(&both);
  sigaddset(&both, SIGTERM);
  sigaddset(&both, SIGINT);
  pthread_sigmask(SIG_UNBLOCK, &both, nullptr);
}

SignalFlag::~SignalFlag() {
  // Handling that somebody has replaced meanwhile is theirs.
  const auto restore = [](int signal, const struct sigaction& old) {
    struct sigaction now {};
    sigaction(signal, nullptr, &now);
    if (now.sa_handler == on_signal) sigaction(signal, &old, nullptr);
  };
  restore(SIGTERM, old_term_);
  restore(SIGINT, old_int_);
  alive = false;
}

int SignalFlag::received() const noexcept {
  return first_signal.load();
}

std::chrono::milliseconds SignalFlag::since_received() const noexcept {
  if (first_signal.load() == 0) return std::chrono::milliseconds{0};
  return std::chrono::duration_cast<std::chrono::milliseconds>(
      std::chrono::nanoseconds(now_ns() - first_ns.load()));
}

std::string signal_name(int signal) {
  if (const char* abbreviation = sigabbrev_np(signal)) return std::string("SIG") + abbreviation;
  return "signal " + std::to_string(signal);
}

}  // namespace steppe::launch
