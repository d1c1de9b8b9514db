#include <algorithm>

#include "steppe/recipe/sections.h"

namespace steppe::recipe {
namespace {

void read_placement(Recipe& recipe, OptimizerSection& optimizer) {
  optimizer.placement = recipe.choice("optimizer.placement", {{"resident", "cpu", "stream"}, {}});
  optimizer.gradients = recipe.choice("optimizer.gradients", {{"device", "host"}, {}});
  recipe.check(optimizer.gradients == "device" || optimizer.placement != "resident", "optimizer.gradients",
               "must be \"device\" with optimizer.placement = \"resident\"");
  optimizer.bucket_params = integer_at_least(recipe, "optimizer.bucket_params", 1, optimizer.bucket_params);
  optimizer.slots = integer_at_least(recipe, "optimizer.slots", 1, optimizer.slots);
}

std::vector<std::string> read_patterns(Recipe& recipe, const std::string& key) {
  auto patterns = recipe.texts(key, {});
  recipe.check(std::ranges::none_of(patterns, &std::string::empty), key,
               "must be globs over parameter names");
  return patterns;
}

std::vector<ParameterGroup> read_groups(Recipe& recipe) {
  constexpr std::string_view kGroups = "optimizer.groups";
  std::vector<ParameterGroup> groups(recipe.num_elements(kGroups));
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const std::string element = element_key(kGroups, i);
    ParameterGroup& group = groups[i];
    group.match = read_patterns(recipe, element + ".match");
    recipe.check(!group.match.empty(), element + ".match", "must be globs over parameter names");
    group.lr = recipe.number(element + ".lr");
    recipe.check(group.lr.value_or(0) >= 0, element + ".lr", "must be at least 0");
    group.weight_decay = recipe.number(element + ".weight_decay");
    recipe.check(group.weight_decay.value_or(0) >= 0, element + ".weight_decay", "must be at least 0");
  }
  return groups;
}

}  // namespace

OptimizerSection read_optimizer_section(Recipe& recipe) {
  OptimizerSection optimizer;
  optimizer.name = recipe.choice("optimizer.name", {{"adamw"}, {}});
  optimizer.lr = recipe.required_number("optimizer.lr", "the peak learning rate");
  recipe.check(optimizer.lr > 0, "optimizer.lr", "must be above 0");

  const std::vector<double> betas =
      recipe.numbers("optimizer.betas", {optimizer.betas.begin(), optimizer.betas.end()});
  const bool in_range =
      std::all_of(betas.begin(), betas.end(), [](double beta) { return beta >= 0 && beta < 1; });
  recipe.check(betas.size() == 2 && in_range, "optimizer.betas", "must be two numbers from 0 to below 1");
  std::copy(betas.begin(), betas.end(), optimizer.betas.begin());

  optimizer.eps = recipe.number("optimizer.eps", optimizer.eps);
  recipe.check(optimizer.eps > 0, "optimizer.eps", "must be above 0");
  optimizer.weight_decay = recipe.number("optimizer.weight_decay", optimizer.weight_decay);
  recipe.check(optimizer.weight_decay >= 0, "optimizer.weight_decay", "must be at least 0");
  optimizer.max_grad_norm = recipe.number("optimizer.max_grad_norm", optimizer.max_grad_norm);
  recipe.check(optimizer.max_grad_norm >= 0, "optimizer.max_grad_norm",
               "must be at least 0 (0: no clipping)");
  read_placement(recipe, optimizer);
  optimizer.moments_dtype = recipe.choice("optimizer.moments_dtype", {{"float32", "bfloat16"}, {}});
  optimizer.freeze = read_patterns(recipe, "optimizer.freeze");
  optimizer.groups = read_groups(recipe);
  return optimizer;
}

}  // namespace steppe::recipe
