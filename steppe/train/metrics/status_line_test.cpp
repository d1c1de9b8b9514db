#include "steppe/train/metrics/status_line.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <pty.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <chrono>
#include <limits>
#include <string>
#include <string_view>

#include "steppe/base/error.h"
#include "steppe/train/metrics/metrics_test_support.h"

namespace steppe::metrics {
namespace {

using namespace std::chrono_literals;

size_t occurrences(std::string_view text, std::string_view part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string_view::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

// A pseudo-terminal: what is written to fd() comes out of output().
class Terminal {
 public:
  explicit Terminal(unsigned short columns) {
    winsize size{};
    size.ws_col = columns;
    size.ws_row = 24;
    STEPPE_CHECK(::openpty(&screen_, &fd_, nullptr, nullptr, &size) == 0, "[test] no pseudo-terminal");
    ::fcntl(screen_, F_SETFL, O_NONBLOCK);
  }
  ~Terminal() {
    ::close(fd_);
    ::close(screen_);
  }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  void resize(unsigned short columns) {
    winsize size{};
    size.ws_col = columns;
    size.ws_row = 24;
    STEPPE_CHECK(::ioctl(screen_, TIOCSWINSZ, &size) == 0, "[test] no resize");
  }

  std::string output() {
    std::string text;
    char piece[4096];
    for (ssize_t got = 0; (got = ::read(screen_, piece, sizeof(piece))) > 0;)
      text.append(piece, static_cast<size_t>(got));
    return text;
  }

  int fd() const { return fd_; }

 private:
  int screen_ = -1;
  int fd_ = -1;
};

TEST(StatusText, ShowsAllFiguresWhereThereIsRoom) {
  EXPECT_EQ(status_text(sample_step(7), {.num_steps = 100}),
            "step 7/100  loss 0.4167  gnorm 0.1  lr 3.00e-04  12.3k tokens/s  2.5 TFLOP/s  peak 3GiB  "
            "planned 4GiB  "
            "left 1h02m");
}

TEST(StatusText, NeverExceedsItsColumnsAndKeepsTheStep) {
  const StepMetrics step = sample_step(7);
  const size_t whole = status_text(step, {.num_steps = 100}).size();
  size_t previous = 0;
  for (int columns = 1; columns <= 130; ++columns) {
    const std::string text = status_text(step, {.num_steps = 100, .columns = columns});
    ASSERT_LE(text.size(), static_cast<size_t>(columns));
    ASSERT_GE(text.size(), previous) << columns;  // more room never shows less
    previous = text.size();
    if (columns >= 10) {
      ASSERT_TRUE(text.starts_with("step 7/100")) << text;
    }
  }
  EXPECT_EQ(previous, whole);
  EXPECT_EQ(status_text(step, {.num_steps = 100, .columns = 25}), "step 7/100  loss 0.4167");
}

TEST(StatusText, ColorTakesNoColumns) {
  const StepMetrics step = sample_step(7);
  std::string colored = status_text(step, {.num_steps = 100, .columns = 40, .color = true});
  EXPECT_NE(colored.find('\x1b'), std::string::npos);
  for (const std::string_view code : {"\x1b[2m", "\x1b[0m"}) {
    for (size_t at; (at = colored.find(code)) != std::string::npos;) colored.erase(at, code.size());
  }
  EXPECT_EQ(colored, status_text(step, {.num_steps = 100, .columns = 40}));
}

TEST(StatusText, ANonFiniteLossIsShown) {
  StepMetrics step = sample_step(7);
  step.loss = std::numeric_limits<double>::quiet_NaN();
  EXPECT_NE(status_text(step, {}).find("loss nan"), std::string::npos);
}

TEST(DurationText, TwoUnitsAtMost) {
  EXPECT_EQ(duration_text(0), "0s");
  EXPECT_EQ(duration_text(59.4), "59s");
  EXPECT_EQ(duration_text(59.6), "1m00s");
  EXPECT_EQ(duration_text(3599), "59m59s");
  EXPECT_EQ(duration_text(3723), "1h02m");
  EXPECT_EQ(duration_text(3 * 86400 + 5 * 3600), "3d05h");
  EXPECT_EQ(duration_text(-1), "?");
  EXPECT_EQ(duration_text(std::numeric_limits<double>::quiet_NaN()), "?");
  EXPECT_EQ(duration_text(std::numeric_limits<double>::infinity()), "?");
}

TEST(StatusLine, ATerminalSeesAtMostTenRedrawsASecond) {
  Terminal terminal(200);
  const Log log = Log::silent();
  StatusLine line(log, {.fd = terminal.fd(), .num_steps = 1000});
  const auto start = StatusLine::Clock::time_point(1000s);
  for (int64_t step = 1; step <= 1000; ++step) line.update(sample_step(step), start + step * 2ms);
  const std::string during = terminal.output();
  EXPECT_EQ(occurrences(during, "step "), 20u);  // 2 s
  EXPECT_EQ(occurrences(during, "\n"), 0u);
  line.finish();
  const std::string last = terminal.output();
  EXPECT_NE(last.find("step 1000/1000"), std::string::npos);  // the newest state, though it came too soon
  EXPECT_TRUE(last.ends_with("\n"));
  line.finish();
  EXPECT_EQ(terminal.output(), "");
}

TEST(StatusLine, FollowsTheWidthOfTheTerminal) {
  Terminal terminal(30);
  EXPECT_EQ(terminal_columns(terminal.fd()), 30);
  const Log log = Log::silent();
  StatusLine line(log, {.fd = terminal.fd()});
  line.update(sample_step(1));
  EXPECT_EQ(terminal.output(), "\r\x1b[Kstep 1  loss 1.6667\r");
  terminal.resize(12);
  line.erase();
  EXPECT_EQ(terminal.output(), "\r\x1b[K");
  line.update(sample_step(2));  // at once: nothing was on the line
  EXPECT_EQ(terminal.output(), "\r\x1b[Kstep 2\r");
}

TEST(StatusLine, PlainLinesInTheLogElsewhere) {
  const TemporaryFolder folder;
  const int fd = ::open((folder / "stderr").c_str(), O_WRONLY | O_CREAT, 0666);
  ASSERT_GE(fd, 0);
  EXPECT_EQ(terminal_columns(fd), std::nullopt);
  {
    // Rank 1: its log is a file alone.
    const Log log({.rank = 1, .folder = folder / "logs", .level = LogLevel::kInfo, .color = false});
    StatusLine line(log, {.fd = fd, .color = true, .num_steps = 3});
    for (int64_t step = 1; step <= 3; ++step) line.update(sample_step(step));
  }
  const std::string text = read_text(folder / "logs/rank_1.log");
  EXPECT_EQ(occurrences(text, "\n"), 3u);
  for (int64_t step = 1; step <= 3; ++step) {
    EXPECT_NE(text.find(status_text(sample_step(step), {.num_steps = 3}) + "\n"), std::string::npos) << text;
  }
  EXPECT_EQ(text.find('\x1b'), std::string::npos);
  EXPECT_EQ(read_text(folder / "stderr"), "");
  ::close(fd);
}

}  // namespace
}  // namespace steppe::metrics
