#include <gtest/gtest.h>

#include "steppe/base/error.h"
#include "steppe/recipe/expect_message.h"
#include "steppe/recipe/sections.h"

namespace steppe::recipe {
namespace {

ProfilerSection section_of(const std::string& text) {
  Recipe recipe = Recipe::parse("[profiler]\n" + text, "recipes/profiler.toml", {});
  auto section = read_profiler_section(recipe, 100);
  recipe.finish();
  return section;
}

TEST(ProfilerSection, ReadsEveryKey) {
  const auto section = section_of("steps = [1, 100]\nranks = [0, 3]\n");
  EXPECT_EQ(section.steps, (std::vector<std::int64_t>{1, 100}));
  EXPECT_EQ(section.ranks, (std::vector<std::int64_t>{0, 3}));
}

TEST(ProfilerSection, DefaultsAreThoseOfTheStruct) {
  EXPECT_EQ(section_of(""), ProfilerSection{});
}

TEST(ProfilerSection, RefusesStepsThatNeverCome) {
  for (const std::string steps : {"[0]", "[1.5]", "[-1]", "[3, 101]"}) {
    SCOPED_TRACE(steps);
    expect_message<ValueError>([&] { section_of("steps = " + steps + "\n"); },
                               {"profiler.steps", "(recipes/profiler.toml:2)",
                                steps == "[3, 101]" ? "training.steps = 100" : "from 1 on"});
  }
  expect_message<ValueError>([&] { section_of("ranks = [-1]\n"); }, {"profiler.ranks", "from 0 on"});
}

}  // namespace
}  // namespace steppe::recipe
