// What to say about a key that nothing read: the name that Steppe has for it, or the one that was meant.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "steppe/recipe/document.h"

namespace steppe::recipe {

// One message for each entry or section of `document` that is not among `read` (keys as they were asked for,
// "data.train[0].path" included) nor holds one of them.
std::vector<std::string> unknown_keys(const Document& document, std::span<const std::string> read);

struct Alias {
  std::string_view theirs;  // lower case, with underscores
  std::string_view ours;
};

// Names of other tools (Megatron, TorchTitan, Hugging Face Trainer, axolotl, DeepSpeed) and ours for them.
std::span<const Alias> aliases();

}  // namespace steppe::recipe
