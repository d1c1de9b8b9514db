#include "steppe/train/metrics/jsonl_writer.h"

#include <charconv>
#include <fstream>
#include <optional>
#include <string_view>
#include <system_error>

#include "steppe/base/error.h"

namespace steppe::metrics {
namespace {

// Reads the step without parsing the line: with the experts' loads, a long run's file has gigabytes.
std::optional<int64_t> step_of(std::string_view line) {
  constexpr std::string_view kPrefix = "{\"step\":";
  if (!line.starts_with(kPrefix) || !line.ends_with('}')) return std::nullopt;
  int64_t step = 0;
  const char* begin = line.data() + kPrefix.size();
  const auto [rest, error] = std::from_chars(begin, line.data() + line.size(), step);
  if (error != std::errc() || (*rest != ',' && *rest != '}')) return std::nullopt;
  return step;
}

}  // namespace

JsonlWriter::Kept JsonlWriter::scan(const std::filesystem::path& path, int64_t first_step) {
  Kept kept;
  std::error_code error;
  const bool exists = std::filesystem::exists(path, error);
  STEPPE_CHECK(!error, "[metrics] cannot look at {}: {}", path.string(), error.message());
  if (!exists) return kept;
  std::ifstream file(path, std::ios::binary);
  STEPPE_CHECK(file.is_open(), "[metrics] cannot read {}", path.string());
  std::string line;
  int64_t previous_step = -1;
  for (int64_t number = 1; std::getline(file, line); ++number) {
    const bool unfinished = file.eof();
    if (unfinished) {
      ++kept.dropped_lines;
      break;
    }
    const auto step = step_of(line);
    STEPPE_CHECK(step.has_value(),
                 "[metrics] {}:{} must be an object that begins with \"step\", got '{}'; move the "
                 "file away to start a new one",
                 path.string(), number, line.substr(0, 80));
    STEPPE_CHECK(*step > previous_step,
                 "[metrics] {}:{} must be of a step past {}, got {}; move the file away to "
                 "start a new one",
                 path.string(), number, previous_step, *step);
    previous_step = *step;
    if (*step >= first_step) {
      ++kept.dropped_lines;
      continue;
    }
    kept.bytes += static_cast<int64_t>(line.size()) + 1;
    kept.last_step = *step;
  }
  STEPPE_CHECK(!file.bad(), "[metrics] cannot read {} to its end", path.string());
  return kept;
}

JsonlWriter::JsonlWriter(const std::filesystem::path& path, int64_t first_step)
    : JsonlWriter(path, scan(path, first_step)) {}

JsonlWriter::JsonlWriter(const std::filesystem::path& path, const Kept& kept)
    : file_(path, kept.bytes), last_step_(kept.last_step), dropped_lines_(kept.dropped_lines) {}

void JsonlWriter::write(const StepMetrics& metrics) {
  STEPPE_ASSERT(metrics.step > last_step_, "[metrics] the step to write must be past {}, got {}", last_step_,
                metrics.step);
  file_.append(json_line(metrics) + '\n');
  last_step_ = metrics.step;
}

}  // namespace steppe::metrics
