// A recipe that counts in epochs is read twice: once to open its data, then with the number of steps they
// make.
#pragma once

#include <string>
#include <vector>

#include "steppe/recipe/run_config.h"

namespace steppe::cli {

struct LoadedRecipe {
  recipe::Recipe recipe;
  recipe::RunConfig run;
};

// ValueError: mistakes in the recipe; with training.epochs, what opening its data says.
LoadedRecipe load_recipe(const std::string& path, std::vector<std::string> overrides, int world_size);

// For what does not depend on the number of steps: no data is opened.
recipe::Recipe load_recipe_of_any_length(const std::string& path, std::vector<std::string> overrides);

}  // namespace steppe::cli
