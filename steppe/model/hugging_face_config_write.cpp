#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "steppe/base/error.h"
#include "steppe/model/family.h"
#include "steppe/model/hugging_face_config.h"

namespace steppe::model {
namespace {

using nlohmann::ordered_json;

std::string_view name_of(RopeKind kind) {
  switch (kind) {
    case RopeKind::kDefault:
      return "default";
    case RopeKind::kLinear:
      return "linear";
    case RopeKind::kLlama3:
      return "llama3";
    case RopeKind::kYarn:
      return "yarn";
  }
  throw InternalError("[model] a kind of rotary scaling without a name");
}

// In the form of older files, which newer ones' readers take too: null, or an object beside rope_theta.
ordered_json rope_scaling(const RopeScaling& r) {
  if (r.kind == RopeKind::kDefault) return nullptr;
  ordered_json o = {{"rope_type", name_of(r.kind)}, {"factor", r.factor}};
  if (r.original_max_position_embeddings > 0)
    o["original_max_position_embeddings"] = r.original_max_position_embeddings;
  if (r.kind == RopeKind::kLlama3) {
    o["low_freq_factor"] = r.low_freq_factor;
    o["high_freq_factor"] = r.high_freq_factor;
  }
  if (r.kind == RopeKind::kYarn) {
    // As people write it: what is usual goes without saying.
    const RopeScaling usual;
    if (r.beta_fast != usual.beta_fast) o["beta_fast"] = r.beta_fast;
    if (r.beta_slow != usual.beta_slow) o["beta_slow"] = r.beta_slow;
    if (r.attention_factor) o["attention_factor"] = *r.attention_factor;
    if (r.mscale != 0) o["mscale"] = r.mscale;
    if (r.mscale_all_dim != 0) o["mscale_all_dim"] = r.mscale_all_dim;
    if (!r.truncate) o["truncate"] = false;
  }
  return o;
}

// A key that the source does not have is left to transformers, as it was there.
ordered_json token_ids(const TokenIds& ids) {
  ordered_json o = ordered_json::object();
  const auto source = ordered_json::parse(ids.source_config.empty() ? "{}" : ids.source_config, nullptr,
                                          /*allow_exceptions=*/false);
  for (const char* key : {"bos_token_id", "eos_token_id", "pad_token_id"}) {
    if (source.is_object() && source.contains(key)) {
      o[key] = source[key];
    } else if (ids.source_config.empty()) {
      o[key] = nullptr;
    }
  }
  if (ids.eos && (!o.contains("eos_token_id") || o["eos_token_id"].is_null())) o["eos_token_id"] = *ids.eos;
  return o;
}

}  // namespace

std::string hugging_face_config(const ModelConfig& c, std::string_view dtype, const TokenIds& ids) {
  const auto& family = family_of(c);
  check_family_has(family, c);
  ordered_json o = {{"architectures", {family.architecture}},
                    {"model_type", family.model_type},
                    {"torch_dtype", dtype},
                    {"vocab_size", c.vocab_size},
                    {"hidden_size", c.hidden_size},
                    {"num_hidden_layers", c.num_hidden_layers},
                    {"num_attention_heads", c.num_attention_heads},
                    {"num_key_value_heads", c.num_key_value_heads},
                    {"head_dim", c.head_dim},
                    {"hidden_act", "silu"},
                    {"max_position_embeddings", c.max_position_embeddings},
                    {"rms_norm_eps", c.rms_norm_eps},
                    {"rope_theta", c.rope_theta},
                    {"rope_scaling", rope_scaling(c.rope_scaling)},
                    {"tie_word_embeddings", c.tie_word_embeddings},
                    {"initializer_range", c.initializer_range},
                    {"attention_dropout", 0.0}};
  // Mixtral's class knows no biases; the other keys' absence would mean what it means here.
  for (const auto& key : family.off) {
    if (key == "attention_bias" || key == "use_sliding_window") o[std::string(key)] = false;
  }
  o[std::string(family.num_experts_key)] = c.num_experts;
  o["num_experts_per_tok"] = c.num_experts_per_tok;
  if (family.has_dense_layers) {
    // Without such layers the width says nothing; a reader wants one all the same.
    o["intermediate_size"] = c.intermediate_size > 0 ? c.intermediate_size : c.moe_intermediate_size;
    o["decoder_sparse_step"] = 1;
    o["mlp_only_layers"] = ordered_json::array();
    for (int64_t layer = 0; layer < c.num_hidden_layers; ++layer) {
      if (c.is_dense_layer(layer)) o["mlp_only_layers"].push_back(layer);
    }
  }
  o[std::string(family.moe_intermediate_size_key)] = c.moe_intermediate_size;
  if (family.has_norm_topk_prob) o["norm_topk_prob"] = c.norm_topk_prob;
  if (family.has_clip_qkv) o["clip_qkv"] = c.clip_qkv > 0 ? ordered_json(c.clip_qkv) : ordered_json();
  o.update(token_ids(ids));
  return o.dump(2) + "\n";
}

std::string hugging_face_generation_config(const TokenIds& ids) {
  ordered_json o = {{"_from_model_config", true}};
  const auto known = token_ids(ids);
  for (const auto& [key, value] : known.items()) {
    if (!value.is_null()) o[key] = value;
  }
  return o.dump(2) + "\n";
}

}  // namespace steppe::model
