// From a native checkpoint into the weights of this rank, at any layout and working precision.
#pragma once

#include <cstdint>

#include "steppe/checkpoint/native_reader.h"
#include "steppe/model/weights.h"

namespace steppe::checkpoint {

enum class Restore {
  kEverything,   // masters, moments and expert biases
  kWeightsOnly,  // masters and expert biases; moments are left as they are (zero in a fresh run)
};

// ValueError listing tensors that the model has and the checkpoint lacks, holds in another shape, or holds
// without a use. No communication.
void check_fits(const Manifest& manifest, model::ModelWeights& weights, const std::string& path);

// Fills this rank's part of every unit, reading only its slices, then the working weights from the masters.
// Collective over each unit's replicas, which tell one another their working weights. Host memory: a block,
// and 16 MiB for what lies on a device.
void restore(NativeReader& reader, model::ModelWeights& weights, Restore what);

}  // namespace steppe::checkpoint
