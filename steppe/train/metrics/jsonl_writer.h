// RUN/metrics.jsonl: one JSON object per step, in order of steps, on disk for other programs to read as it
// grows.
//
// Keys are plain (`loss`, `tokens_per_s`, `peak_by_category`, …); the router's are `moe/…`, with
// `moe/expert_load` as [layer][expert]; `validation` maps a set's name to its loss, ppl and tokens. A key
// that has no meaning at a step is absent. Numbers read back as the same doubles. A NaN or infinity becomes
// null, and the object `nonfinite` maps its key to "nan", "inf" or "-inf".
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "steppe/train/metrics/append_file.h"
#include "steppe/train/metrics/step_metrics.h"

namespace steppe::metrics {

// The object as one line, without the newline.
std::string json_line(const StepMetrics& metrics);

class JsonlWriter {
 public:
  // first_step is the first that this run will write: 0 for a fresh run, one past the checkpoint's step for a
  // resumed one. Lines at or past it are cut off, and so is a last line that a crash left unfinished: the
  // file then has neither gap nor repeat. Throws RuntimeFailure, and changes nothing, where a finished line
  // is not one that this class wrote or steps do not rise.
  JsonlWriter(const std::filesystem::path& path, int64_t first_step);

  // Steps must rise. The line is with the kernel on return.
  void write(const StepMetrics& metrics);

  // To be called before a checkpoint is published, so that no power failure can leave a gap before its step.
  void sync() { file_.sync(); }

  // Lines cut off when the file was opened, an unfinished one included.
  int64_t dropped_lines() const { return dropped_lines_; }

 private:
  struct Kept {
    int64_t bytes = 0;
    int64_t last_step = -1;
    int64_t dropped_lines = 0;
  };
  static Kept scan(const std::filesystem::path& path, int64_t first_step);
  JsonlWriter(const std::filesystem::path& path, const Kept& kept);

  AppendFile file_;
  int64_t last_step_;
  int64_t dropped_lines_;
};

}  // namespace steppe::metrics
