#include <gtest/gtest.h>

#include "steppe/base/error.h"
#include "steppe/recipe/expect_message.h"
#include "steppe/recipe/least_recipe.h"
#include "steppe/recipe/run_config.h"

namespace steppe::recipe {
namespace {

OptimizerSection section_of(const std::string& more, const std::vector<std::string>& overrides = {}) {
  Recipe recipe = Recipe::parse(std::string(kLeast) + more, "run.toml", overrides);
  return read_run_config(recipe).optimizer;
}

TEST(OptimizerSection, ReadsEveryKey) {
  const auto optimizer = section_of(
      "[[optimizer.groups]]\nmatch = [\"*norm*\"]\nweight_decay = 0\n"
      "[[optimizer.groups]]\nmatch = [\"*embed*\", \"lm_head*\"]\nlr = 1e-4\n",
      {"optimizer.placement=stream", "optimizer.gradients=host", "optimizer.bucket_params=1e6",
       "optimizer.slots=3", "optimizer.moments_dtype=bfloat16", "optimizer.freeze=[\"*.experts.*\"]"});
  EXPECT_EQ(optimizer.placement, "stream");
  EXPECT_EQ(optimizer.gradients, "host");
  EXPECT_EQ(optimizer.bucket_params, 1'000'000);
  EXPECT_EQ(optimizer.slots, 3);
  EXPECT_EQ(optimizer.moments_dtype, "bfloat16");
  EXPECT_EQ(optimizer.freeze, (std::vector<std::string>{"*.experts.*"}));
  ASSERT_EQ(optimizer.groups.size(), 2u);
  EXPECT_EQ(optimizer.groups[0].match, (std::vector<std::string>{"*norm*"}));
  EXPECT_EQ(optimizer.groups[0].weight_decay, 0.0);
  EXPECT_EQ(optimizer.groups[0].lr, std::nullopt);
  EXPECT_EQ(optimizer.groups[1].match.size(), 2u);
  EXPECT_EQ(optimizer.groups[1].lr, 1e-4);
}

TEST(OptimizerSection, ResolvedTomlLoadsBackToTheSame) {
  Recipe recipe = Recipe::parse(std::string(kLeast) + "[[optimizer.groups]]\nmatch = [\"*norm*\"]\nlr = 0\n",
                                "run.toml", std::vector<std::string>{"optimizer.freeze=[\"a*\"]"});
  const auto config = read_run_config(recipe);
  Recipe again = Recipe::parse(recipe.resolved_toml(), "elsewhere/run.toml");
  EXPECT_EQ(read_run_config(again), config);
}

TEST(OptimizerSection, BadValuesAreNamed) {
  const std::pair<const char*, const char*> bad[] = {
      {"optimizer.gradients=host", "must be \"device\" with optimizer.placement = \"resident\""},
      {"optimizer.gradients=disk", "\"device\", \"host\""},
      {"optimizer.bucket_params=0", "at least 1"},
      {"optimizer.slots=0", "at least 1"},
      {"optimizer.moments_dtype=float16", "\"float32\", \"bfloat16\""},
      {"optimizer.freeze=[\"\"]", "globs"},
  };
  for (const auto& [override, expectation] : bad) {
    SCOPED_TRACE(override);
    expect_message<ValueError>([&] { section_of("", {override}); }, {expectation});
  }
  expect_message<ValueError>([] { section_of("[[optimizer.groups]]\nlr = 1e-4\n"); },
                             {"optimizer.groups[0].match", "globs"});
  expect_message<ValueError>([] { section_of("[[optimizer.groups]]\nmatch = [\"*\"]\nlr = -1\n"); },
                             {"optimizer.groups[0].lr = -1", "at least 0"});
}

}  // namespace
}  // namespace steppe::recipe
