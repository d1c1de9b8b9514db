// The files that turn text into a model's tokens, for an export.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "steppe/recipe/run_config.h"

namespace steppe::checkpoint {

struct TokenizerFiles {
  std::filesystem::path folder;    // where they are; empty when there are none
  std::vector<std::string> names;  // tokenizer.json and what stands beside it
  std::optional<int64_t> eos;      // that the data was prepared with
};

// The folder of data.tokenizer (by default model.path), or else of data.prepared, which has its copy.
// ValueError when both are there and differ: text would not become the tokens that the model has learnt.
TokenizerFiles find_tokenizer(const recipe::RunConfig& run);

}  // namespace steppe::checkpoint
