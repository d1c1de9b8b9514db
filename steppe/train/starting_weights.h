// The weights that a run begins with when no checkpoint says otherwise.
#pragma once

#include "steppe/base/log.h"
#include "steppe/model/config.h"
#include "steppe/model/weights.h"
#include "steppe/recipe/run_config.h"

namespace steppe::train {

// Those of the folder at model.path, each rank reading its slices; without one, random ones from
// training.seed; the log says which. No communication. Errors: those of load_hugging_face_weights.
void set_starting_weights(const recipe::RunConfig& run, const model::ModelConfig& model,
                          model::ModelWeights& weights, const Log& log);

}  // namespace steppe::train
