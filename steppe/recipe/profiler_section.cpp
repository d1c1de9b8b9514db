#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "steppe/recipe/sections.h"

namespace steppe::recipe {
namespace {

std::vector<std::int64_t> whole_numbers(Recipe& recipe, const char* key,
                                        const std::vector<std::int64_t>& fallback, std::int64_t least) {
  const auto numbers = recipe.numbers(key, {fallback.begin(), fallback.end()});
  const bool good = std::all_of(numbers.begin(), numbers.end(), [&](double number) {
    return std::trunc(number) == number && number >= static_cast<double>(least) && number < 1e15;
  });
  recipe.check(good, key, fmt::format("must be a list of whole numbers from {} on", least));
  std::vector<std::int64_t> whole(numbers.begin(), numbers.end());
  recipe.record(key, List(whole.begin(), whole.end()));
  return whole;
}

}  // namespace

ProfilerSection read_profiler_section(Recipe& recipe, std::int64_t steps) {
  ProfilerSection profiler;
  profiler.steps = whole_numbers(recipe, "profiler.steps", profiler.steps, 1);
  // training.steps = 0 stands for "missing", which finish() reports.
  const bool reached = std::all_of(profiler.steps.begin(), profiler.steps.end(),
                                   [&](std::int64_t step) { return steps == 0 || step <= steps; });
  recipe.check(reached, "profiler.steps", fmt::format("must be at most training.steps = {}", steps));
  profiler.ranks = whole_numbers(recipe, "profiler.ranks", profiler.ranks, 0);
  return profiler;
}

}  // namespace steppe::recipe
