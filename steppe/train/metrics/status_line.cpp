#include "steppe/train/metrics/status_line.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <string_view>
#include <utility>
#include <vector>

#include "steppe/base/bytes.h"

namespace steppe::metrics {
namespace {

constexpr std::string_view kEraseLine = "\r\x1b[K";
constexpr std::string_view kDim = "\x1b[2m";
constexpr std::string_view kPlain = "\x1b[0m";
constexpr std::string_view kGap = "  ";

struct Field {
  int importance;  // higher stays longer
  std::string label;
  std::string value;
  std::string unit;

  size_t columns() const { return label.size() + value.size() + unit.size(); }
};

std::string count_text(double count) {
  constexpr std::array<std::string_view, 5> kSuffixes = {"", "k", "M", "G", "T"};
  size_t power = 0;
  while (power + 1 < kSuffixes.size() && count >= 999.5) {
    count /= 1000;
    ++power;
  }
  const int decimals = count < 9.995 ? 2 : count < 99.95 ? 1 : 0;
  return fmt::format("{:.{}f}{}", count, decimals, kSuffixes[power]);
}

std::vector<Field> fields_of(const StepMetrics& metrics, int64_t num_steps) {
  std::vector<Field> fields;
  const std::string of_steps = num_steps > 0 ? fmt::format("/{}", num_steps) : "";
  fields.push_back({9, "step ", fmt::format("{}{}", metrics.step, of_steps), ""});
  if (metrics.trained()) {
    fields.push_back({8, "loss ", fmt::format("{:.4f}", metrics.loss), ""});
    fields.push_back({5, "gnorm ", fmt::format("{:.3g}", metrics.grad_norm), ""});
    fields.push_back({3, "lr ", fmt::format("{:.2e}", metrics.lr), ""});
    fields.push_back({6, "", count_text(metrics.tokens_per_s), " tokens/s"});
    const char* tflops_format = metrics.tflops < 1000 ? "{:.3g}" : "{:.0f}";
    fields.push_back({1, "", fmt::format(fmt::runtime(tflops_format), metrics.tflops), " TFLOP/s"});
  }
  fields.push_back({4, "peak ", format_bytes(metrics.peak_bytes), ""});
  if (metrics.plan_peak_bytes) fields.push_back({2, "planned ", format_bytes(*metrics.plan_peak_bytes), ""});
  if (metrics.trained()) fields.push_back({7, "left ", duration_text(metrics.time_left_s), ""});
  return fields;
}

size_t line_columns(const std::vector<Field>& fields) {
  size_t columns = kGap.size() * (fields.size() - 1);
  for (const Field& field : fields) columns += field.columns();
  return columns;
}

// A bare step that still does not fit is cut; nothing may wrap, for a wrapped line cannot be rewritten.
void fit(std::vector<Field>& fields, size_t columns) {
  while (fields.size() > 1 && line_columns(fields) > columns) {
    fields.erase(std::min_element(fields.begin(), fields.end(), [](const Field& a, const Field& b) {
      return a.importance < b.importance;
    }));
  }
  if (line_columns(fields) > columns) {
    Field& only = fields.front();
    only = {only.importance, "", only.value.substr(0, columns), ""};
  }
}

}  // namespace

std::string status_text(const StepMetrics& metrics, const StatusFormat& format) {
  std::vector<Field> fields = fields_of(metrics, format.num_steps);
  if (format.columns > 0) fit(fields, static_cast<size_t>(format.columns));
  const auto quiet = [&format](const std::string& text) {
    return format.color && !text.empty() ? fmt::format("{}{}{}", kDim, text, kPlain) : text;
  };
  std::string line;
  for (const Field& field : fields) {
    if (!line.empty()) line += kGap;
    line += quiet(field.label) + field.value + quiet(field.unit);
  }
  return line;
}

std::string duration_text(double seconds) {
  // Past 2^53 s a double no longer counts seconds.
  if (!(seconds >= 0) || seconds > 9e15) return "?";
  const auto whole = static_cast<int64_t>(std::llround(seconds));
  const int64_t minutes = whole / 60;
  const int64_t hours = minutes / 60;
  if (minutes == 0) return fmt::format("{}s", whole);
  if (hours == 0) return fmt::format("{}m{:02}s", minutes, whole % 60);
  if (hours < 24) return fmt::format("{}h{:02}m", hours, minutes % 60);
  return fmt::format("{}d{:02}h", hours / 24, hours % 24);
}

std::optional<int> terminal_columns(int fd) {
  if (::isatty(fd) != 1) return std::nullopt;
  winsize size{};
  if (::ioctl(fd, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return 80;
  return size.ws_col;
}

StatusLine::StatusLine(const Log& log, const StatusLineOptions& options)
    : log_(log), options_(options), live_(terminal_columns(options.fd).has_value()) {}

StatusLine::~StatusLine() {
  finish();
}

void StatusLine::update(const StepMetrics& metrics, Clock::time_point now) {
  if (!live_) {
    log_.write(LogLevel::kInfo, status_text(metrics, {.num_steps = options_.num_steps}));
    return;
  }
  const bool too_soon = drawn_ && std::chrono::duration<double>(now - *drawn_at_).count() < options_.redraw_s;
  if (too_soon) {
    undrawn_ = metrics;
    return;
  }
  redraw(metrics);
  drawn_at_ = now;
}

namespace {

void write_ignoring_failure(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(fd, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;
    text.remove_prefix(static_cast<size_t>(written));
  }
}

}  // namespace

void StatusLine::redraw(const StepMetrics& metrics) {
  // The last column stays free: a terminal that fills it may wrap.
  const int columns = std::max(1, terminal_columns(options_.fd).value_or(80) - 1);
  const StatusFormat format{.num_steps = options_.num_steps, .columns = columns, .color = options_.color};
  write_ignoring_failure(options_.fd, fmt::format("{}{}\r", kEraseLine, status_text(metrics, format)));
  drawn_ = true;
  undrawn_.reset();
}

void StatusLine::erase() {
  if (!drawn_) return;
  write_ignoring_failure(options_.fd, kEraseLine);
  drawn_ = false;
}

void StatusLine::finish() {
  if (undrawn_) redraw(*undrawn_);
  if (drawn_) write_ignoring_failure(options_.fd, "\n");
  drawn_ = false;
}

}  // namespace steppe::metrics
