// A rank's log: rank 0 prints to stderr, and every rank writes RUN/logs/rank_N.log; the other ranks print
// nothing. One `Log` per rank, made by the program and passed by reference; calls may come from any thread.
#pragma once

#include <fmt/format.h>

#include <memory>
#include <string>
#include <string_view>
#include <utility>

namespace spdlog {
class logger;
}

namespace steppe {

enum class LogLevel { kDebug, kInfo, kWarning, kError, kOff };

// "debug", "info", "warning", "error" or "off"; ValueError otherwise.
LogLevel log_level(std::string_view name);

struct LogOptions {
  int rank = 0;
  std::string folder;                // of rank_N.log, made when missing; empty: no files
  LogLevel level = LogLevel::kInfo;  // what is less important is dropped
  bool color = false;                // of level names on stderr; the program decides (terminal, NO_COLOR)
};

class Log {
 public:
  // Appends to a rank_N.log that exists already. RuntimeFailure: the folder or file cannot be written.
  explicit Log(const LogOptions& options);
  // Drops everything; for tests and for library users with a log of their own.
  static Log silent() {
    return Log(LogOptions{.rank = 0, .folder = {}, .level = LogLevel::kOff, .color = false});
  }

  bool enabled(LogLevel level) const;

  // Arguments are formatted only when the level is enabled.
  template <class... Args>
  void debug(fmt::format_string<Args...> format, Args&&... args) const {
    write_if(LogLevel::kDebug, format, std::forward<Args>(args)...);
  }
  template <class... Args>
  void info(fmt::format_string<Args...> format, Args&&... args) const {
    write_if(LogLevel::kInfo, format, std::forward<Args>(args)...);
  }
  template <class... Args>
  void warning(fmt::format_string<Args...> format, Args&&... args) const {
    write_if(LogLevel::kWarning, format, std::forward<Args>(args)...);
  }
  template <class... Args>
  void error(fmt::format_string<Args...> format, Args&&... args) const {
    write_if(LogLevel::kError, format, std::forward<Args>(args)...);
  }

  // A finished text, several lines included.
  void write(LogLevel level, std::string_view text) const;
  // To the file alone: what somebody else prints.
  void record(LogLevel level, std::string_view text) const;
  // Warnings and errors are on disk when their call returns; this does it for the rest.
  void flush() const;

 private:
  template <class... Args>
  void write_if(LogLevel level, fmt::format_string<Args...> format, Args&&... args) const {
    if (enabled(level)) write(level, fmt::format(format, std::forward<Args>(args)...));
  }

  std::shared_ptr<spdlog::logger> logger_, file_logger_;  // to every place; to the file
};

}  // namespace steppe
