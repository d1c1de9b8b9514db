// The plan that stands before a run.
#pragma once

#include <cstdint>

#include "steppe/base/log.h"
#include "steppe/recipe/run_config.h"

namespace steppe::cli {

// Logs the verdict; the planned peak in bytes, on the fullest rank. Throws ValueError when the run cannot fit
// the machine at hand (or the recipe's hardware), unless plan.allow_unfit.
int64_t planned_peak(const recipe::RunConfig& run, int world_size, int num_threads, const Log& log);

}  // namespace steppe::cli
