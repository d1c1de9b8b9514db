#include "steppe/recipe/places.h"

#include <gtest/gtest.h>

namespace steppe::recipe {
namespace {

std::string placed(const std::string& message) {
  const std::string overrides[] = {"parallelism.ulysses_degree=3"};
  return with_places(Recipe::parse("[model]\nnum_experts = 4\nnum_attention_heads = 8\n"
                                   "[parallelism]\nexpert_parallel_degree = 3\n",
                                   "run.toml", overrides),
                     message);
}

TEST(Places, KeysThatAMessageNamesGetTheirs) {
  EXPECT_EQ(placed("[layout] parallelism.expert_parallel_degree must divide model.num_experts=4, got 3"),
            "[layout] parallelism.expert_parallel_degree must divide model.num_experts=4, got 3 "
            "(parallelism.expert_parallel_degree: run.toml:5; model.num_experts: run.toml:2)");
  EXPECT_EQ(
      placed("[layout] parallelism.ulysses_degree must divide W=4, got 3."),
      "[layout] parallelism.ulysses_degree must divide W=4, got 3. (parallelism.ulysses_degree: --set)");
}

TEST(Places, OneOfEach) {
  EXPECT_EQ(placed("model.num_experts, and model.num_experts again"),
            "model.num_experts, and model.num_experts again (model.num_experts: run.toml:2)");
}

TEST(Places, AMessageOfTheModelNamesItsKeysAlone) {
  EXPECT_EQ(
      placed("[model] num_experts = 4 (the recipe's [model]) must be at least 8"),
      "[model] num_experts = 4 (the recipe's [model]) must be at least 8 (model.num_experts: run.toml:2)");
  EXPECT_EQ(placed("[dispatch] num_experts = 4"), "[dispatch] num_experts = 4");
}

TEST(Places, NothingIsAddedToWhatHasItsPlaceOrNone) {
  for (const char* message :
       {"[recipe] model.num_experts = 4 (run.toml:2) must be at least 8", "[model] hidden_size must be even",
        "[plan] training.seq_length is too long", "[data] a model of its own", ""}) {
    EXPECT_EQ(placed(message), message);
  }
}

}  // namespace
}  // namespace steppe::recipe
