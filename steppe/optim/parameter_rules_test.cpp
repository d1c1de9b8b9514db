#include "steppe/optim/parameter_rules.h"

#include <gtest/gtest.h>

#include "steppe/base/error.h"

namespace steppe::optim {
namespace {

const std::vector<std::string> kNames = {"model.embed_tokens.weight", "model.layers.0.mlp.gate.weight",
                                         "model.layers.0.mlp.experts.0.up_proj.weight",
                                         "model.layers.0.input_layernorm.weight"};

TEST(ParameterRules, FreezeWinsOverGroups) {
  ParameterRules rules{.lr = 2e-3, .freeze = {"*embed_tokens*"}, .groups = {{{"*"}, 1e-3, 0.0}}};
  EXPECT_EQ(treatment_of(rules, kNames[0]), (Treatment{true, 0.5, 0.0}));
  EXPECT_EQ(treatment_of(rules, kNames[1]), (Treatment{false, 0.5, 0.0}));
  EXPECT_NO_THROW(check_rules(rules, kNames));
}

TEST(ParameterRules, StarsMatchDots) {
  const ParameterRules rules{.lr = 1, .freeze = {"model.layers.?.mlp.experts.*"}, .groups = {}};
  EXPECT_TRUE(treatment_of(rules, kNames[2]).frozen);
  EXPECT_FALSE(treatment_of(rules, kNames[1]).frozen);
  EXPECT_EQ(treatment_of({}, kNames[1]), Treatment{});
}

TEST(ParameterRules, AGroupMayLeaveRateOrDecayAlone) {
  const ParameterRules rules{
      .lr = 4, .freeze = {}, .groups = {{{"*norm*"}, {}, 0.5}, {{"*experts*"}, 1.0, {}}}};
  EXPECT_EQ(treatment_of(rules, kNames[3]), (Treatment{false, 1, 0.5}));
  EXPECT_EQ(treatment_of(rules, kNames[2]), (Treatment{false, 0.25, {}}));
}

TEST(ParameterRules, MistakesAreNamed) {
  const auto message = [](const ParameterRules& rules) -> std::string {
    try {
      check_rules(rules, kNames);
    } catch (const ValueError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_NE(message({1, {"*embeding*"}, {}}).find("optimizer.freeze: \"*embeding*\" must match"),
            std::string::npos);
  EXPECT_NE(
      message({1, {}, {{{"*norm*"}, {}, {}}, {{"lm_head*"}, {}, {}}}}).find("optimizer.groups[1].match"),
      std::string::npos);
  EXPECT_NE(message({1, {}, {{{"*gate*"}, {}, {}}, {{"*mlp*"}, {}, {}}}}).find("groups[0] and [1]"),
            std::string::npos);
  EXPECT_NE(message({1, {"*"}, {}}).find("leave something to train"), std::string::npos);
}

}  // namespace
}  // namespace steppe::optim
