// A model's configuration from where people keep it: a Hugging Face config.json, the keys of a recipe's
// [model], or the first with the second on top.
//
// ValueError naming file or recipe key, value and what it must be; RuntimeFailure for a file that cannot be
// read.
#pragma once

#include <string>

#include "steppe/model/config.h"
#include "steppe/recipe/run_config.h"

namespace steppe::model {

// Of model_type "qwen3_moe"; others are refused by name. A missing key has the value that transformers gives
// it. What this version does not compute (biases, sliding windows, other activations, quantized weights, …)
// is refused. Rotary settings are read as older files (rope_theta and rope_scaling) and as newer ones
// (rope_parameters) keep them.
ModelConfig read_hugging_face_config(const std::string& path);

// `overrides.config` and `overrides.compute_dtype` are not looked at. Not validated.
ModelConfig apply_overrides(ModelConfig config, const recipe::ModelSection& overrides);

// The file at `section.config`, if there is one, with the section's other keys on top; otherwise the keys
// alone, where sizes that have no sensible default are required. Validated.
ModelConfig model_config(const recipe::ModelSection& section);

}  // namespace steppe::model
