// Where the figures of a run go: the status line, metrics.jsonl, TensorBoard, and the table of the peak at
// the end. Made on every rank; only rank 0 writes.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "steppe/base/log.h"
#include "steppe/recipe/run_config.h"
#include "steppe/train/metrics/jsonl_writer.h"
#include "steppe/train/metrics/planned_memory.h"
#include "steppe/train/metrics/status_line.h"
#include "steppe/train/metrics/step_metrics.h"
#include "steppe/train/metrics/tensorboard_writer.h"

namespace steppe::train {

class Reporter {
 public:
  // `start_step`: the step that the run goes on from; what earlier files say of later ones is dropped.
  // `planned`: what steps are held against.
  Reporter(const recipe::RunConfig& run, const Log& log, bool reports, bool color, int64_t start_step,
           std::optional<metrics::PlannedMemory> planned);

  // Every step; shown and written each logging.interval steps, at the last one, and where there are
  // validation results. The first whose peak passes the plan's figures is told of.
  void step(const metrics::StepMetrics& metrics);
  // Returns once metrics.jsonl is on the disk; from any thread.
  void sync();
  // Ends the status line and prints the table of the highest peak.
  void finish();

 private:
  const recipe::RunConfig& run_;
  const Log& log_;
  bool reports_;
  std::optional<metrics::JsonlWriter> jsonl_;
  std::optional<metrics::TensorboardWriter> tensorboard_;
  std::optional<metrics::StatusLine> status_;
  std::optional<metrics::PeakWatch> peak_watch_;
  metrics::StepMetrics highest_;  // the step with the highest peak so far
};

}  // namespace steppe::train
