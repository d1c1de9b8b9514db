// Which degrees a plan proposes.
#pragma once

#include <cstdint>

#include "steppe/model/config.h"

namespace steppe::plan {

inline constexpr int64_t kWidestVocab = 8;  // a tile of logits gathers rows of as many ranks

// Ulysses: query heads are dealt out evenly, key and value heads too or to several ranks each.
inline bool heads_divide(const model::ModelConfig& model, int64_t degree) {
  return model.num_attention_heads % degree == 0 &&
         (model.num_key_value_heads % degree == 0 || degree % model.num_key_value_heads == 0);
}

}  // namespace steppe::plan
