#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "steppe/model/hugging_face_config.h"

namespace steppe::model {
namespace {

using Change = std::function<void(ModelConfig&)>;

std::vector<std::string> after(
    const Change& change, const Change& both = [](ModelConfig&) {}) {
  ModelConfig before;
  both(before);
  auto now = before;
  change(now);
  return differences(before, now);
}

TEST(ConfigDifferences, NameTheFieldWithBothValues) {
  const std::pair<Change, const char*> cases[] = {
      {[](auto& c) { c.num_hidden_layers = 3; }, "num_hidden_layers was 0 and is 3"},
      {[](auto& c) { c.hidden_size = 64; }, "hidden_size was 0 and is 64"},
      {[](auto& c) { c.num_attention_heads = 4; }, "num_attention_heads was 0 and is 4"},
      {[](auto& c) { c.num_key_value_heads = 2; }, "num_key_value_heads was 0 and is 2"},
      {[](auto& c) { c.head_dim = 16; }, "head_dim was 0 and is 16"},
      {[](auto& c) { c.intermediate_size = 5; }, "intermediate_size was 0 and is 5"},
      {[](auto& c) { c.vocab_size = 101; }, "vocab_size was 0 and is 101"},
      {[](auto& c) { c.rms_norm_eps = 1e-5; }, "rms_norm_eps was 1e-06 and is 1e-05"},
      {[](auto& c) { c.tie_word_embeddings = true; }, "tie_word_embeddings was false and is true"},
      {[](auto& c) { c.rope_theta = 500; }, "rope_theta was 10000 and is 500"},
      {[](auto& c) { c.num_experts = 8; }, "num_experts was 0 and is 8"},
      {[](auto& c) { c.num_experts_per_tok = 2; }, "num_experts_per_tok was 0 and is 2"},
      {[](auto& c) { c.moe_intermediate_size = 7; }, "moe_intermediate_size was 0 and is 7"},
      {[](auto& c) { c.norm_topk_prob = false; }, "norm_topk_prob was true and is false"},
      {[](auto& c) { c.first_k_dense_replace = 1; }, "first_k_dense_replace was 0 and is 1"},
      {[](auto& c) {
         c.mlp_only_layers = {1, 2};
       },
       "mlp_only_layers was [] and is [1, 2]"},
      {[](auto& c) { c.shared_expert_intermediate_size = 9; },
       "shared_expert_intermediate_size was 0 and is 9"},
      {[](auto& c) { c.qk_norm = QkNorm::kFull; }, "qk_norm was head and is full"},
      {[](auto& c) { c.clip_qkv = 8; }, "clip_qkv was 0 and is 8"},
      {[](auto& c) { c.rope_scaling = {.kind = RopeKind::kLinear, .factor = 4}; },
       "rope_scaling was none and is linear by 4"}};
  for (const auto& [change, said] : cases) EXPECT_EQ(after(change), std::vector<std::string>{said});
}

TEST(ConfigDifferences, EveryNumberOfYarnCounts) {
  const Change yarn = [](auto& c) {
    c.rope_scaling = {.kind = RopeKind::kYarn, .factor = 4, .original_max_position_embeddings = 1024};
  };
  const std::string was =
      "rope_scaling was yarn by 4 from 1024 (32, 1; attention by the formula, 0, 0; rounded)";
  const std::pair<Change, const char*> cases[] = {
      {[](auto& c) { c.rope_scaling.factor = 2; }, "yarn by 2 from 1024 (32, 1;"},
      {[](auto& c) { c.rope_scaling.original_max_position_embeddings = 512; }, "from 512"},
      {[](auto& c) { c.rope_scaling.beta_fast = 16; }, "(16, 1;"},
      {[](auto& c) { c.rope_scaling.beta_slow = 2; }, "(32, 2;"},
      {[](auto& c) { c.rope_scaling.attention_factor = 1.5; }, "attention 1.5, 0, 0"},
      {[](auto& c) { c.rope_scaling.mscale = 0.5; }, "formula, 0.5, 0"},
      {[](auto& c) { c.rope_scaling.mscale_all_dim = 0.5; }, "formula, 0, 0.5"},
      {[](auto& c) { c.rope_scaling.truncate = false; }, "not rounded"}};
  for (const auto& [change, said] : cases) {
    const auto all = after(change, yarn);
    ASSERT_EQ(all.size(), 1u) << said;
    EXPECT_TRUE(all.front().starts_with(was + " and is yarn by ")) << all.front();
    EXPECT_NE(all.front().find(said), std::string::npos) << all.front();
  }
}

// The number of positions is part of the model where it is the length that scaling starts from.
TEST(ConfigDifferences, PositionsCountWhereScalingStretchesThem) {
  const Change longer = [](auto& c) { c.max_position_embeddings = 8192; };
  const auto scaled = [](RopeKind kind, int64_t original) {
    return [=](ModelConfig& c) {
      c.max_position_embeddings = 4096;
      c.rope_scaling = {.kind = kind, .factor = 4, .original_max_position_embeddings = original};
    };
  };
  EXPECT_EQ(after(longer), std::vector<std::string>{});
  EXPECT_EQ(after(longer, scaled(RopeKind::kLinear, 0)), std::vector<std::string>{});
  EXPECT_EQ(after(longer, scaled(RopeKind::kLlama3, 4096)), std::vector<std::string>{});
  for (const auto kind : {RopeKind::kLlama3, RopeKind::kYarn}) {
    const auto all = after(longer, scaled(kind, 0));
    ASSERT_EQ(all.size(), 1u);
    EXPECT_NE(all.front().find("by 4 from 4096"), std::string::npos) << all.front();
    EXPECT_NE(all.front().find("by 4 from 8192"), std::string::npos) << all.front();
  }
  EXPECT_EQ(after([](auto& c) { c.initializer_range = 0.1; }), std::vector<std::string>{});
}

}  // namespace
}  // namespace steppe::model
