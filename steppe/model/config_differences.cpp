// The fields of a configuration as text. Each struct is taken apart by name: a field that is added to it does
// not compile here until it says whether it is part of the model.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string>
#include <vector>

#include "steppe/model/hugging_face_config.h"

namespace steppe::model {
namespace {

struct Field {
  const char* key;
  std::string text;
};

std::string text_of(const RopeScaling& scaling, int64_t max_position_embeddings) {
  const auto& [kind, factor, original, low_freq_factor, high_freq_factor, beta_fast, beta_slow,
               attention_factor, mscale, mscale_all_dim, truncate] = scaling;
  const int64_t length = original > 0 ? original : max_position_embeddings;
  const auto attention = attention_factor ? fmt::format("{}", *attention_factor) : "by the formula";
  switch (kind) {
    case RopeKind::kDefault:
      return "none";
    case RopeKind::kLinear:
      return fmt::format("linear by {}", factor);
    case RopeKind::kLlama3:
      return fmt::format("llama3 by {} from {} ({}, {})", factor, length, low_freq_factor, high_freq_factor);
    case RopeKind::kYarn:
      return fmt::format("yarn by {} from {} ({}, {}; attention {}, {}, {}; {})", factor, length, beta_fast,
                         beta_slow, attention, mscale, mscale_all_dim, truncate ? "rounded" : "not rounded");
  }
  return "unknown";
}

std::string text_of(QkNorm norm) {
  if (norm == QkNorm::kNone) return "none";
  return norm == QkNorm::kHead ? "head" : "full";
}

// Not part of the model: what random weights are drawn with, and how many positions it is meant for, except
// where scaling stretches those.
std::vector<Field> fields_of(const ModelConfig& config) {
  [[maybe_unused]] const auto& [num_hidden_layers, hidden_size, num_attention_heads, num_key_value_heads,
                                head_dim, intermediate_size, vocab_size, rms_norm_eps, tie_word_embeddings,
                                rope_theta, rope_scaling, max_position_embeddings, num_experts,
                                num_experts_per_tok, moe_intermediate_size, norm_topk_prob,
                                first_k_dense_replace, mlp_only_layers, shared_expert_intermediate_size,
                                qk_norm, clip_qkv, initializer_range] = config;
  std::vector<Field> fields;
  const auto add = [&](const char* key, const auto& value) {
    fields.push_back({key, fmt::format("{}", value)});
  };
  add("num_hidden_layers", num_hidden_layers);
  add("hidden_size", hidden_size);
  add("num_attention_heads", num_attention_heads);
  add("num_key_value_heads", num_key_value_heads);
  add("head_dim", head_dim);
  add("intermediate_size", intermediate_size);
  add("vocab_size", vocab_size);
  add("rms_norm_eps", rms_norm_eps);
  add("tie_word_embeddings", tie_word_embeddings);
  add("rope_theta", rope_theta);
  add("rope_scaling", text_of(rope_scaling, max_position_embeddings));
  add("num_experts", num_experts);
  add("num_experts_per_tok", num_experts_per_tok);
  add("moe_intermediate_size", moe_intermediate_size);
  add("norm_topk_prob", norm_topk_prob);
  add("first_k_dense_replace", first_k_dense_replace);
  add("mlp_only_layers", mlp_only_layers);
  add("shared_expert_intermediate_size", shared_expert_intermediate_size);
  add("qk_norm", text_of(qk_norm));
  add("clip_qkv", clip_qkv);
  return fields;
}

}  // namespace

std::vector<std::string> differences(const ModelConfig& before, const ModelConfig& now) {
  const auto was = fields_of(before), is = fields_of(now);
  std::vector<std::string> all;
  for (size_t i = 0; i < was.size(); ++i) {
    if (was[i].text != is[i].text)
      all.push_back(fmt::format("{} was {} and is {}", was[i].key, was[i].text, is[i].text));
  }
  return all;
}

}  // namespace steppe::model
