// RUN/timeline/step_N_rank_R.json: every allocation and release of the steps that `profiler.steps` names, on
// the ranks of `profiler.ranks`. Steps that are not named cost nothing.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

#include "steppe/memory/timeline_recording.h"
#include "steppe/recipe/run_config.h"

namespace steppe::train {

class TimelineFiles {
 public:
  // Throws ValueError where profiler.ranks names a rank that the run does not have.
  TimelineFiles(const recipe::RunConfig& run, int rank, int world_size);

  // Around the step, on the rank's own thread.
  void begin(int64_t step);
  void end(int64_t step);

 private:
  std::filesystem::path folder_;
  std::vector<int64_t> steps_;  // none on a rank that is not named
  int rank_;
  std::optional<memory::TimelineRecording> recording_;
};

}  // namespace steppe::train
