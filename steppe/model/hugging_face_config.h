// A model's configuration from where people keep it: a Hugging Face config.json, the keys of a recipe's
// [model], or the first with the second on top.
//
// ValueError naming file or recipe key, value and what it must be; RuntimeFailure for a file that cannot be
// read.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "steppe/model/config.h"
#include "steppe/recipe/run_config.h"

namespace steppe::model {

// Of a model_type in the table of families; others are refused by name. A missing key has the value that
// transformers gives it. What this version does not compute (biases, sliding windows, other activations,
// quantized weights, …) is refused. Rotary settings are read as older files (rope_theta and rope_scaling) and
// as newer ones (rope_parameters) keep them.
ModelConfig read_hugging_face_config(const std::string& path);
// The same from the file's text; `place` is what messages call it.
ModelConfig parse_hugging_face_config(const std::string& text, const std::string& place);
std::string read_config_file(const std::string& path);

// `overrides.config`, `.path` and `.compute_dtype` are not looked at. Not validated.
ModelConfig apply_overrides(ModelConfig config, const recipe::ModelSection& overrides);

// The config.json that the section names, alone or in the folder at `section.path`; nothing without either,
// nor where `section.config` is the JSON itself, as a run has it from its checkpoint when the file is gone.
std::optional<std::string> config_file(const recipe::ModelSection& section);
// The text of that file, or that JSON; empty without either.
std::string config_json(const recipe::ModelSection& section);

// That file, if there is one, with the section's other keys on top; otherwise the keys alone, where sizes
// that have no sensible default are required. Validated.
ModelConfig model_config(const recipe::ModelSection& section);
// As it was when `config_json` was what that file said; empty: the section named none.
ModelConfig model_config(const recipe::ModelSection& section, const std::string& config_json,
                         const std::string& place);

// "num_experts was 8 and is 16": what makes the second another model than the first.
std::vector<std::string> differences(const ModelConfig& before, const ModelConfig& now);

// Special tokens, for who generates text.
struct TokenIds {
  std::string source_config;   // text of the config.json that training started from, or empty
  std::optional<int64_t> eos;  // where that has none
};

// The config.json of this model in its family, weights being of `dtype` ("bfloat16"), in the older form that
// transformers 5 reads too. ValueError for what the family cannot say.
std::string hugging_face_config(const ModelConfig& config, std::string_view dtype, const TokenIds& ids);
std::string hugging_face_generation_config(const TokenIds& ids);

}  // namespace steppe::model
