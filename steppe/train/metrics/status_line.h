// The line that says how training goes: on a terminal one line that rewrites itself, elsewhere a plain line
// in the log per step that is handed in.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "steppe/base/log.h"
#include "steppe/train/metrics/step_metrics.h"

namespace steppe::metrics {

struct StatusFormat {
  int64_t num_steps = 0;  // of the whole run; 0: unknown, the line shows the step alone
  int columns = 0;     // 0: no limit; otherwise the least important figures are left out until the rest fits
  bool color = false;  // ANSI escapes, which take no columns
};

// step, loss, gradient norm, learning rate, tokens/s, TFLOP/s, peak (and the planned one), time left.
std::string status_text(const StepMetrics& metrics, const StatusFormat& format);

// "45s", "3m20s", "1h02m", "2d03h"; "?" for a time that is negative or not a number.
std::string duration_text(double seconds);

// The columns of the terminal behind a file descriptor; none if it is not a terminal. A terminal that does
// not know its size has 80.
std::optional<int> terminal_columns(int fd);

struct StatusLineOptions {
  int fd = 2;          // where the log prints too
  bool color = false;  // false under NO_COLOR, which the program reads
  int64_t num_steps = 0;
  double redraw_s = 0.1;  // at most one redraw in this time
};

// One thread. Whether fd is a terminal is settled once; its width is asked for at every redraw. After a
// redraw the cursor is at the line's start, so that a stray log line covers the status instead of trailing
// it; erase() before logging keeps both clean. A terminal that has gone away is no reason to stop training:
// failed writes are ignored.
class StatusLine {
 public:
  using Clock = std::chrono::steady_clock;

  StatusLine(const Log& log, const StatusLineOptions& options);
  ~StatusLine();
  StatusLine(const StatusLine&) = delete;
  StatusLine& operator=(const StatusLine&) = delete;

  void update(const StepMetrics& metrics, Clock::time_point now = Clock::now());

  // Removes the live line until the next update.
  void erase();

  // Leaves the newest state on the terminal, and the cursor below it. The destructor does this too.
  void finish();

 private:
  void redraw(const StepMetrics& metrics);

  const Log& log_;
  StatusLineOptions options_;
  bool live_;
  bool drawn_ = false;
  std::optional<Clock::time_point> drawn_at_;
  std::optional<StepMetrics> undrawn_;  // newer than what the terminal shows
};

}  // namespace steppe::metrics
