#include "steppe/model/family.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "steppe/base/error.h"
#include "steppe/recipe/expect_message.h"

namespace steppe::model {
namespace {

using recipe::expect_message;

TEST(Family, RowsAreToldApart) {
  std::set<std::string_view> types;
  for (const auto& family : families()) {
    EXPECT_TRUE(types.insert(family.model_type).second) << family.model_type;
    EXPECT_EQ(find_family(family.model_type), &family);
    EXPECT_EQ(&family_of(family.defaults), &family)
        << family.model_type << " shares its QK-norm with another";
  }
  EXPECT_EQ(find_family("llama"), nullptr);
}

TEST(Family, NamesOfTensors) {
  const auto& qwen = *find_family("qwen3_moe");
  const auto& mixtral = *find_family("mixtral");
  const std::string layer = "model.layers.11.";
  for (const auto* same :
       {"model.embed_tokens.weight", "lm_head.weight", "model.layers.0.self_attn.q_proj.weight",
        "model.layers.3.mlp.gate_proj.weight", "model.layers.3.mlp.shared_expert.up_proj.weight",
        "model.layers.3.mlp.experts.12.up_proj.weight", "model.layers.3.mlp.gate.weight"}) {
    EXPECT_EQ(stored_name(qwen, same), same);
    EXPECT_EQ(stored_name(*find_family("olmoe"), same), same);
  }
  EXPECT_EQ(stored_name(mixtral, layer + "self_attn.k_proj.weight"), layer + "self_attn.k_proj.weight");
  EXPECT_EQ(stored_name(mixtral, layer + "mlp.gate.weight"), layer + "block_sparse_moe.gate.weight");
  const auto theirs = layer + "block_sparse_moe.experts.7.";
  EXPECT_EQ(stored_name(mixtral, layer + "mlp.experts.7.gate_proj.weight"), theirs + "w1.weight");
  EXPECT_EQ(stored_name(mixtral, layer + "mlp.experts.7.down_proj.weight"), theirs + "w2.weight");
  EXPECT_EQ(stored_name(mixtral, layer + "mlp.experts.7.up_proj.weight"), theirs + "w3.weight");
}

TEST(Family, WhatItCannotSay) {
  const auto refused = [](const char* type, auto change, std::initializer_list<std::string> parts) {
    auto config = find_family(type)->defaults;
    config.head_dim = config.hidden_size / config.num_attention_heads;
    check_family_has(*find_family(type), config);
    change(config);
    SCOPED_TRACE(type);
    expect_message<ValueError>([&] { check_family_has(*find_family(type), config); }, parts);
  };
  refused("qwen3_moe", [](auto& c) { c.shared_expert_intermediate_size = 4; },
          {"shared_expert_intermediate_size = 4"});
  refused("qwen3_moe", [](auto& c) { c.clip_qkv = 8; }, {"Qwen3MoeForCausalLM", "clip_qkv = 8"});
  refused("qwen3_moe", [](auto& c) { c.first_k_dense_replace = 24; }, {"a model without experts"});
  refused("mixtral",
          [](auto& c) {
            c.norm_topk_prob = false, c.mlp_only_layers = {1, 3};
          },
          {"2 layers without experts", "norm_topk_prob = false"});
  refused("olmoe", [](auto& c) { c.head_dim = 64; }, {"1024", "hidden_size = 2048"});
}

}  // namespace
}  // namespace steppe::model
