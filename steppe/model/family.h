// Families of models as Hugging Face has them: what a config.json of each says, how its tensors are named. A
// family is a row of a table; a new one whose layers compute what ours do is a new row.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "steppe/model/config.h"

namespace steppe::model {

struct Family {
  std::string_view model_type, architecture;  // in config.json
  // What transformers takes where a config.json has no such key, and what the family always does. A
  // num_key_value_heads of 0 is num_attention_heads, a head_dim of 0 hidden_size over num_attention_heads.
  ModelConfig defaults;
  // Names that differ in config.json.
  std::string_view num_experts_key = "num_experts";
  std::string_view moe_intermediate_size_key = "moe_intermediate_size";
  // What can be said there at all.
  bool has_dense_layers = false;  // mlp_only_layers, intermediate_size
  bool has_norm_topk_prob = true;
  bool has_clip_qkv = false;
  // Keys that this version wants absent, null, false or 0 in this family.
  std::vector<std::string_view> off;
  // Names of tensors.
  std::string_view block = "mlp";  // of a layer: where router and experts are
  std::string_view gate = "gate_proj", up = "up_proj", down = "down_proj";  // of an expert
};

std::span<const Family> families();

// Null when there is none of that model_type.
const Family* find_family(std::string_view model_type);

// The family that has this model's QK-norm: they differ in that.
const Family& family_of(const ModelConfig& config);

// ValueError listing what the family's config.json cannot say of this model.
void check_family_has(const Family& family, const ModelConfig& config);

// A tensor under our name ("model.layers.0.mlp.experts.3.up_proj.weight") as the family's files name it, each
// expert by itself.
std::string stored_name(const Family& family, std::string_view tensor);

}  // namespace steppe::model
