#include "cli/load_recipe.h"

#include <fmt/format.h>

#include <utility>

#include "steppe/base/error.h"
#include "steppe/recipe/places.h"
#include "steppe/train/epochs.h"
#include "steppe/train/resume.h"

namespace steppe::cli {
namespace {

constexpr int64_t kAnyNumber = 1'000'000'000'000;  // of steps, more than whatever must not exceed them

bool counts_in_epochs(const recipe::Recipe& recipe) {
  return recipe.has("training.epochs") && !recipe.has("training.steps");
}

recipe::Recipe with_steps(const std::string& path, std::vector<std::string> overrides, int64_t steps) {
  overrides.push_back(fmt::format("training.steps={}", steps));
  return recipe::Recipe::load(path, overrides);
}

int64_t steps_of_epochs(const recipe::Recipe& recipe, const recipe::RunConfig& run, int world_size) {
  try {
    return train::steps_of_epochs(run, world_size);
  } catch (const ValueError& error) {
    throw ValueError(recipe::with_places(recipe, error.what()));
  }
}

}  // namespace

recipe::Recipe load_recipe_of_any_length(const std::string& path, std::vector<std::string> overrides) {
  auto recipe = recipe::Recipe::load(path, overrides);
  return counts_in_epochs(recipe) ? with_steps(path, std::move(overrides), kAnyNumber) : recipe;
}

LoadedRecipe load_recipe(const std::string& path, std::vector<std::string> overrides, int world_size) {
  auto recipe = load_recipe_of_any_length(path, overrides);
  auto run = recipe::read_run_config(recipe);
  if (run.training.steps != kAnyNumber) return {std::move(recipe), std::move(run)};
  train::keep_saved_model(run);  // a run that goes on is counted without its config.json as well
  auto counted = with_steps(path, std::move(overrides), steps_of_epochs(recipe, run, world_size));
  auto counted_run = recipe::read_run_config(counted);
  return {std::move(counted), std::move(counted_run)};
}

}  // namespace steppe::cli
