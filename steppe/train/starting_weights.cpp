#include "steppe/train/starting_weights.h"

#include <cstdint>

#include "steppe/checkpoint/hugging_face_weights.h"

namespace steppe::train {

void set_starting_weights(const recipe::RunConfig& run, const model::ModelConfig& model,
                          model::ModelWeights& weights, const Log& log) {
  if (run.model.path) {
    log.info("starts with the weights in model.path = {}", *run.model.path);
    checkpoint::load_hugging_face_weights(weights, model, *run.model.path);
  } else {
    log.info("starts with random weights: training.seed = {}", run.training.seed);
    weights.initialize(static_cast<uint64_t>(run.training.seed));
  }
}

}  // namespace steppe::train
