#include "steppe/base/log.h"

#include <spdlog/logger.h>
#include <spdlog/sinks/ansicolor_sink.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/spdlog.h>

#include <filesystem>
#include <system_error>
#include <vector>

#include "steppe/base/error.h"

namespace steppe {
namespace {

spdlog::level::level_enum spdlog_level(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
    case LogLevel::kOff:
      break;
  }
  return spdlog::level::off;
}

spdlog::sink_ptr file_sink(const LogOptions& options) {
  const std::filesystem::path folder(options.folder);
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  STEPPE_CHECK(!error, "[log] cannot make the folder {}: {}", folder.string(), error.message());
  const std::string file = (folder / fmt::format("rank_{}.log", options.rank)).string();
  try {
    auto sink = std::make_shared<spdlog::sinks::basic_file_sink_mt>(file);
    sink->set_pattern("%Y-%m-%d %H:%M:%S.%e %l: %v");
    return sink;
  } catch (const spdlog::spdlog_ex& failure) {
    throw RuntimeFailure(fmt::format("[log] cannot write {}: {}", file, failure.what()));
  }
}

std::shared_ptr<spdlog::logger> make_logger(const std::vector<spdlog::sink_ptr>& sinks, LogLevel level) {
  auto logger = std::make_shared<spdlog::logger>("steppe", sinks.begin(), sinks.end());
  logger->set_level(spdlog_level(level));
  logger->flush_on(spdlog::level::warn);
  return logger;
}

}  // namespace

LogLevel log_level(std::string_view name) {
  if (name == "debug") return LogLevel::kDebug;
  if (name == "info") return LogLevel::kInfo;
  if (name == "warning") return LogLevel::kWarning;
  if (name == "error") return LogLevel::kError;
  if (name == "off") return LogLevel::kOff;
  throw ValueError(fmt::format("[log] level must be debug, info, warning, error or off, got \"{}\"", name));
}

Log::Log(const LogOptions& options) {
  STEPPE_CHECK_VALUE(options.rank >= 0, "[log] rank must be 0 or more, got {}", options.rank);
  std::vector<spdlog::sink_ptr> sinks;
  if (options.level != LogLevel::kOff) {
    if (options.rank == 0) {
      const auto mode = options.color ? spdlog::color_mode::always : spdlog::color_mode::never;
      sinks.push_back(std::make_shared<spdlog::sinks::ansicolor_stderr_sink_mt>(mode));
      sinks.back()->set_pattern("%H:%M:%S %^%l%$: %v");
    }
    if (!options.folder.empty()) sinks.push_back(file_sink(options));
  }
  // Not registered with spdlog: ranks that are threads of one process each have their own.
  logger_ = make_logger(sinks, options.level);
  const bool has_file = options.level != LogLevel::kOff && !options.folder.empty();
  file_logger_ =
      make_logger(has_file ? std::vector{sinks.back()} : std::vector<spdlog::sink_ptr>{}, options.level);
}

bool Log::enabled(LogLevel level) const {
  return level != LogLevel::kOff && logger_->should_log(spdlog_level(level));
}

void Log::write(LogLevel level, std::string_view text) const {
  if (enabled(level)) logger_->log(spdlog_level(level), spdlog::string_view_t(text.data(), text.size()));
}

void Log::record(LogLevel level, std::string_view text) const {
  if (enabled(level)) file_logger_->log(spdlog_level(level), spdlog::string_view_t(text.data(), text.size()));
}

void Log::flush() const {
  logger_->flush();
}

}  // namespace steppe
