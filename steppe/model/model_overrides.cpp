#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "steppe/base/error.h"
#include "steppe/model/family.h"
#include "steppe/model/hugging_face_config.h"

namespace steppe::model {
namespace {

template <class T>
void override_with(T& field, const std::optional<T>& value) {
  if (value) field = *value;
}

RopeScaling rope_scaling(const recipe::RopeScaling& section) {
  RopeScaling r;
  if (section.rope_type == "linear") r.kind = RopeKind::kLinear;
  if (section.rope_type == "llama3") r.kind = RopeKind::kLlama3;
  if (section.rope_type == "yarn") r.kind = RopeKind::kYarn;
  STEPPE_ASSERT(r.kind != RopeKind::kDefault || section.rope_type == "default",
                "[model] the recipe let rope_type = \"{}\" through", section.rope_type);
  override_with(r.factor, section.factor);
  override_with(r.original_max_position_embeddings, section.original_max_position_embeddings);
  override_with(r.low_freq_factor, section.low_freq_factor);
  override_with(r.high_freq_factor, section.high_freq_factor);
  override_with(r.beta_fast, section.beta_fast);
  override_with(r.beta_slow, section.beta_slow);
  r.attention_factor = section.attention_factor;
  override_with(r.mscale, section.mscale);
  override_with(r.mscale_all_dim, section.mscale_all_dim);
  override_with(r.truncate, section.truncate);
  return r;
}

QkNorm qk_norm(const std::string& name) {
  if (name == "none") return QkNorm::kNone;
  if (name == "full") return QkNorm::kFull;
  STEPPE_ASSERT(name == "head", "[model] the recipe let qk_norm = \"{}\" through", name);
  return QkNorm::kHead;
}

void require_sizes(const recipe::ModelSection& s) {
  std::vector<std::string> missing;
  const auto need = [&](const std::optional<int64_t>& value, const char* key) {
    if (!value) missing.push_back(fmt::format("model.{}", key));
  };
  need(s.num_hidden_layers, "num_hidden_layers");
  need(s.hidden_size, "hidden_size");
  need(s.num_attention_heads, "num_attention_heads");
  need(s.vocab_size, "vocab_size");
  const bool has_experts = s.num_hidden_layers && s.first_k_dense_replace.value_or(0) < *s.num_hidden_layers;
  if (has_experts || !s.num_hidden_layers) {
    need(s.num_experts, "num_experts");
    need(s.num_experts_per_tok, "num_experts_per_tok");
    need(s.moe_intermediate_size, "moe_intermediate_size");
  }
  if (s.first_k_dense_replace.value_or(0) > 0) need(s.intermediate_size, "intermediate_size");
  STEPPE_CHECK_VALUE(
      missing.empty(),
      "[model] the recipe names neither model.path nor model.config, so these keys are needed: {}",
      fmt::join(missing, ", "));
}

}  // namespace

ModelConfig apply_overrides(ModelConfig c, const recipe::ModelSection& s) {
  override_with(c.num_hidden_layers, s.num_hidden_layers);
  override_with(c.hidden_size, s.hidden_size);
  override_with(c.num_attention_heads, s.num_attention_heads);
  override_with(c.num_key_value_heads, s.num_key_value_heads);
  override_with(c.head_dim, s.head_dim);
  override_with(c.intermediate_size, s.intermediate_size);
  override_with(c.vocab_size, s.vocab_size);
  override_with(c.rms_norm_eps, s.rms_norm_eps);
  override_with(c.tie_word_embeddings, s.tie_word_embeddings);
  override_with(c.rope_theta, s.rope_theta);
  if (s.rope_scaling) c.rope_scaling = rope_scaling(*s.rope_scaling);
  override_with(c.max_position_embeddings, s.max_position_embeddings);
  override_with(c.num_experts, s.num_experts);
  override_with(c.num_experts_per_tok, s.num_experts_per_tok);
  override_with(c.moe_intermediate_size, s.moe_intermediate_size);
  override_with(c.norm_topk_prob, s.norm_topk_prob);
  override_with(c.first_k_dense_replace, s.first_k_dense_replace);
  override_with(c.shared_expert_intermediate_size, s.shared_expert_intermediate_size);
  if (s.qk_norm) c.qk_norm = qk_norm(*s.qk_norm);
  override_with(c.clip_qkv, s.clip_qkv);
  // A model cut short keeps the dense layers that it still has.
  std::erase_if(c.mlp_only_layers, [&](int64_t layer) { return layer >= c.num_hidden_layers; });
  return c;
}

namespace {

bool is_json(const std::optional<std::string>& config) {
  return config && config->starts_with('{');
}

}  // namespace

std::optional<std::string> config_file(const recipe::ModelSection& section) {
  if (section.path) return (std::filesystem::path(*section.path) / "config.json").string();
  return is_json(section.config) ? std::nullopt : section.config;
}

std::string config_json(const recipe::ModelSection& section) {
  if (const auto file = config_file(section)) return read_config_file(*file);
  return section.config.value_or("");
}

namespace {

ModelConfig with_overrides(const ModelConfig& read, const recipe::ModelSection& section,
                           const std::string& place) {
  const auto& family = family_of(read);
  STEPPE_CHECK_VALUE(
      family.has_dense_layers || !section.intermediate_size || section.first_k_dense_replace.value_or(0) > 0,
      "[model] model.intermediate_size is the width of layers without experts, and {} ({}) has "
      "none: the experts' is model.moe_intermediate_size",
      place, family.model_type);
  auto config = apply_overrides(read, section);
  validate(config, fmt::format("{} with the recipe's [model] on top", place));
  return config;
}

ModelConfig from_keys(const recipe::ModelSection& section) {
  require_sizes(section);
  ModelConfig defaults;
  defaults.num_key_value_heads = *section.num_attention_heads;
  defaults.head_dim = *section.hidden_size / std::max<int64_t>(1, *section.num_attention_heads);
  defaults.max_position_embeddings = 32768;  // as transformers has it for Qwen3-MoE
  auto config = apply_overrides(std::move(defaults), section);
  validate(config, "the recipe's [model]");
  return config;
}

void check_opens(const recipe::ModelSection& section, const std::string& file) {
  const bool opens = std::ifstream(file).good();
  const int reason = errno;
  std::error_code ignored;
  const bool is_folder = std::filesystem::is_directory(file, ignored);
  const auto given = section.path ? fmt::format("model.path = \"{}\"", *section.path)
                                  : fmt::format("model.config = \"{}\"", *section.config);
  STEPPE_CHECK_VALUE(!is_folder, "[model] {}: {} must be a file, and is a folder", given, file);
  STEPPE_CHECK_VALUE(opens, "[model] {}: cannot open {}: {}", given, file, std::strerror(reason));
}

}  // namespace

ModelConfig model_config(const recipe::ModelSection& section) {
  if (const auto file = config_file(section)) {
    check_opens(section, *file);
    return with_overrides(read_hugging_face_config(*file), section, *file);
  }
  return model_config(section, config_json(section), "model.config");
}

ModelConfig model_config(const recipe::ModelSection& section, const std::string& config_json,
                         const std::string& place) {
  return config_json.empty() ? from_keys(section)
                             : with_overrides(parse_hugging_face_config(config_json, place), section, place);
}

}  // namespace steppe::model
