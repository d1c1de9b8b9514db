#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string>
#include <vector>

#include "steppe/model/hugging_face_config.h"

namespace steppe::model {
namespace {

std::string text_of(const RopeScaling& r) {
  const auto attention = r.attention_factor ? fmt::format("{}", *r.attention_factor) : "by the formula";
  switch (r.kind) {
    case RopeKind::kDefault:
      return "none";
    case RopeKind::kLinear:
      return fmt::format("linear by {}", r.factor);
    case RopeKind::kLlama3:
      return fmt::format("llama3 by {} from {} ({}, {})", r.factor, r.original_max_position_embeddings,
                         r.low_freq_factor, r.high_freq_factor);
    case RopeKind::kYarn:
      return fmt::format("yarn by {} from {} ({}, {}; attention {}, {}, {}; {})", r.factor,
                         r.original_max_position_embeddings, r.beta_fast, r.beta_slow, attention, r.mscale,
                         r.mscale_all_dim, r.truncate ? "rounded" : "not rounded");
  }
  return "unknown";
}

std::string text_of(QkNorm norm) {
  if (norm == QkNorm::kNone) return "none";
  return norm == QkNorm::kHead ? "head" : "full";
}

}  // namespace

std::vector<std::string> differences(const ModelConfig& before, const ModelConfig& now) {
  std::vector<std::string> all;
  const auto compare = [&](const char* key, const auto& was, const auto& is) {
    const auto old_text = fmt::format("{}", was), new_text = fmt::format("{}", is);
    if (old_text != new_text) all.push_back(fmt::format("{} was {} and is {}", key, old_text, new_text));
  };
  const auto& a = before;
  const auto& b = now;
  compare("num_hidden_layers", a.num_hidden_layers, b.num_hidden_layers);
  compare("hidden_size", a.hidden_size, b.hidden_size);
  compare("num_attention_heads", a.num_attention_heads, b.num_attention_heads);
  compare("num_key_value_heads", a.num_key_value_heads, b.num_key_value_heads);
  compare("head_dim", a.head_dim, b.head_dim);
  compare("intermediate_size", a.intermediate_size, b.intermediate_size);
  compare("vocab_size", a.vocab_size, b.vocab_size);
  compare("rms_norm_eps", a.rms_norm_eps, b.rms_norm_eps);
  compare("tie_word_embeddings", a.tie_word_embeddings, b.tie_word_embeddings);
  compare("rope_theta", a.rope_theta, b.rope_theta);
  compare("rope_scaling", text_of(a.rope_scaling), text_of(b.rope_scaling));
  compare("num_experts", a.num_experts, b.num_experts);
  compare("num_experts_per_tok", a.num_experts_per_tok, b.num_experts_per_tok);
  compare("moe_intermediate_size", a.moe_intermediate_size, b.moe_intermediate_size);
  compare("norm_topk_prob", a.norm_topk_prob, b.norm_topk_prob);
  compare("first_k_dense_replace", a.first_k_dense_replace, b.first_k_dense_replace);
  compare("mlp_only_layers", a.mlp_only_layers, b.mlp_only_layers);
  compare("shared_expert_intermediate_size", a.shared_expert_intermediate_size,
          b.shared_expert_intermediate_size);
  compare("qk_norm", text_of(a.qk_norm), text_of(b.qk_norm));
  compare("clip_qkv", a.clip_qkv, b.clip_qkv);
  return all;
}

}  // namespace steppe::model
