// SIGTERM and SIGINT ask the run to stop: the first sets a flag that the training loop reads at the end of a
// step; one more, later than a few seconds after the first, ends the process at once.
#pragma once

#include <chrono>
#include <csignal>
#include <string>

namespace steppe::launch {

// Launchers deliver one request several times within milliseconds (torchrun, and a terminal's Ctrl-C that a
// parent forwards too).
inline constexpr std::chrono::milliseconds kOneRequest{5000};

// Handles SIGTERM and SIGINT while it lives; at most one lives at a time (InternalError). A signal that the
// process was told to ignore (a background job's SIGINT) stays ignored. SIGUSR1, SIGUSR2 and SIGHUP are left
// alone. The handler is async-signal-safe; the process leaves with status 128 + signal on the second request.
// Signals that the parent kept back (spawn.h: until the rank can heed them) come at once.
class SignalFlag {
 public:
  explicit SignalFlag(std::chrono::milliseconds one_request = kOneRequest);
  ~SignalFlag();
  SignalFlag(const SignalFlag&) = delete;
  SignalFlag& operator=(const SignalFlag&) = delete;

  // 0, or the first signal that came. One atomic load: call it as often as you like, from any thread.
  int received() const noexcept;
  // Time since the first signal, for the grace a save has left; zero when none came.
  std::chrono::milliseconds since_received() const noexcept;

 private:
  struct sigaction old_term_, old_int_;
};

// "SIGTERM" for 15; "signal 63" for one without a common name.
std::string signal_name(int signal);

}  // namespace steppe::launch
