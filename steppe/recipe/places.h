// Places for messages of those who know a configuration, and not the file that it came from.
#pragma once

#include <string>

#include "steppe/recipe/recipe.h"

namespace steppe::recipe {

// The message, and where the keys that it names were set: "… (parallelism.ulysses_degree: run.toml:12)". A
// message of "[model]" names keys of that section without it. Keys that nobody set, and places that the
// message has already, add nothing.
std::string with_places(const Recipe& recipe, const std::string& message);

}  // namespace steppe::recipe
