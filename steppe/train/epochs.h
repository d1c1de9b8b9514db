// How long a run is whose recipe counts in epochs.
#pragma once

#include <cstdint>

#include "steppe/recipe/run_config.h"

namespace steppe::train {

// Optimizer steps that read the training data run.training.epochs times, rounded up: of several datasets,
// blended by their weights, the one that lasts longest. Opens the datasets.
// ValueError: what opening them says; a model or layout that does not fit; more than 1e9 steps.
int64_t steps_of_epochs(const recipe::RunConfig& run, int world_size);

}  // namespace steppe::train
