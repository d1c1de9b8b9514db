// Weights of a model from the files that transformers writes, and back into plain vectors for tests.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "steppe/model/config.h"
#include "steppe/model/weight_unit.h"
#include "steppe/model/weights.h"

namespace steppe::checkpoint {

// Fills every unit of this rank, masters and working weights, reading only what the rank holds. No
// communication. Host memory: one slice in fp32 beside the units; the files are mapped. `folder_or_file`: see
// TensorFolder. Tensors go by the names of the model's family, experts by themselves or packed. ValueError
// listing every tensor that is missing, unused, of another shape or quantized, before anything is written. A
// model with tied embeddings takes the file's lm_head.weight only if it equals the embedding. Does nothing
// but the checks on `meta`.
void load_hugging_face_weights(model::ModelWeights& weights, const model::ModelConfig& config,
                               const std::string& folder_or_file);

enum class UnitPart { kMaster, kGradient };

// A whole logical tensor of a unit that one rank holds alone (one replica), row-major. ValueError for a
// tensor that the unit does not have.
std::vector<float> read_logical(const model::WeightUnit& unit, std::string_view tensor, UnitPart part);

}  // namespace steppe::checkpoint
