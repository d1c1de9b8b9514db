#include "steppe/train/reporter.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "steppe/train/metrics/summary_tables.h"

namespace steppe::train {
namespace {

bool reports_to(const recipe::RunConfig& run, const char* name) {
  const auto& to = run.logging.report_to;
  return std::find(to.begin(), to.end(), name) != to.end();
}

}  // namespace

Reporter::Reporter(const recipe::RunConfig& run, const Log& log, bool reports, bool color, int64_t start_step,
                   std::optional<metrics::PlannedMemory> planned)
    : run_(run), log_(log), reports_(reports) {
  if (!reports) return;
  const std::filesystem::path folder = run.run.folder;
  const int64_t first_step = start_step == 0 ? 0 : start_step + 1;
  if (reports_to(run, "jsonl")) jsonl_.emplace(folder / "metrics.jsonl", first_step);
  if (reports_to(run, "tensorboard")) tensorboard_.emplace(folder / "tensorboard", first_step);
  if (planned) peak_watch_.emplace(std::move(*planned));
  status_.emplace(log, metrics::StatusLineOptions{.color = color, .num_steps = run.training.steps});
}

void Reporter::step(const metrics::StepMetrics& metrics) {
  if (!reports_) return;
  if (metrics.peak_bytes > highest_.peak_bytes) highest_ = metrics;
  if (peak_watch_) {
    if (const auto remark = peak_watch_->step(metrics); !remark.text.empty()) {
      status_->erase();
      log_.write(remark.level, remark.text);
    }
  }
  const bool due = metrics.step % run_.logging.interval == 0 || metrics.step == run_.training.steps;
  if (!due && metrics.validation.empty()) return;
  if (jsonl_) jsonl_->write(metrics);
  if (tensorboard_) tensorboard_->write(metrics);
  if (metrics.trained()) status_->update(metrics);
  if (!metrics.validation.empty()) {
    status_->erase();
    log_.write(LogLevel::kInfo, metrics::validation_lines(metrics.step, metrics.validation));
  }
}

void Reporter::sync() {
  if (jsonl_) jsonl_->sync();
}

void Reporter::finish() {
  if (!reports_) return;
  status_->finish();
  if (highest_.peak_bytes > 0) {
    log_.write(LogLevel::kInfo, fmt::format("peak memory of the fullest rank, step {}\n{}", highest_.step,
                                            metrics::peak_table(highest_.peak_by_category)));
  }
}

}  // namespace steppe::train
