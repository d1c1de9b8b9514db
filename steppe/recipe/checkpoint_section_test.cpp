#include <gtest/gtest.h>

#include "steppe/base/error.h"
#include "steppe/recipe/expect_message.h"
#include "steppe/recipe/least_recipe.h"
#include "steppe/recipe/run_config.h"

namespace steppe::recipe {
namespace {

Recipe recipe_of(const std::vector<std::string>& overrides) {
  return Recipe::parse(kLeast, "recipes/least.toml", overrides);
}

CheckpointSection section_of(const std::vector<std::string>& overrides) {
  auto recipe = recipe_of(overrides);
  return read_run_config(recipe).checkpoint;
}

TEST(CheckpointSection, ReadsEveryKey) {
  CheckpointSection expected;
  expected.folder = "/fast/c";
  expected.interval = 100, expected.keep = 0, expected.keep_every = 1000;
  expected.first_step = false;
  expected.resume = "never";
  expected.load = "runs/old/checkpoints/latest";
  expected.load_weights_only = true;
  expected.async = false;
  expected.host_budget = int64_t{64} << 30;
  expected.grace = 100.5;
  EXPECT_EQ(
      section_of({"checkpoint.folder=/fast/c", "checkpoint.interval=100", "checkpoint.keep=0",
                  "checkpoint.keep_every=1000", "checkpoint.first_step=false", "checkpoint.resume=never",
                  "checkpoint.load=runs/old/checkpoints/latest", "checkpoint.load_weights_only=true",
                  "checkpoint.async=false", "checkpoint.host_budget=64GiB", "checkpoint.grace=100.5"}),
      expected);
}

// A resolved recipe that is run again in another folder must not find the first run's checkpoints.
TEST(CheckpointSection, TheFolderFollowsTheRunsUnlessItIsSet) {
  auto recipe = recipe_of({"run.folder=out/one"});
  EXPECT_EQ(read_run_config(recipe).checkpoint.folder, "out/one/checkpoints");
  const std::vector<std::string> elsewhere = {"run.folder=out/two"};
  auto again = Recipe::parse(recipe.resolved_toml(), "recipe.toml", elsewhere);
  EXPECT_EQ(read_run_config(again).checkpoint.folder, "out/two/checkpoints");
}

TEST(CheckpointSection, BadValuesNameKeyAndExpectation) {
  const auto refused = [](const std::string& override, const std::string& part) {
    SCOPED_TRACE(override);
    expect_message<ValueError>([&] { section_of({override}); }, {part});
  };
  refused("checkpoint.folder=\"\"", "must not be empty");
  refused("checkpoint.interval=-1", "at least 0");
  refused("checkpoint.keep=-1", "at least 0");
  refused("checkpoint.keep_every=-1", "at least 0");
  refused("checkpoint.resume=always", "\"auto\", \"never\"");
  refused("checkpoint.load=\"\"", "must not be empty");
  refused("checkpoint.load_weights_only=true", "without checkpoint.load");
  refused("checkpoint.host_budget=much", "checkpoint.host_budget");
  refused("checkpoint.grace=-1", "at least 0 seconds");
}

}  // namespace
}  // namespace steppe::recipe
