#include "steppe/model/family.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "steppe/base/error.h"

namespace steppe::model {
namespace {

ModelConfig qwen3_moe_defaults() {
  ModelConfig c;
  c.num_hidden_layers = 24, c.hidden_size = 2048, c.vocab_size = 151936, c.max_position_embeddings = 32768;
  c.num_attention_heads = 32, c.num_key_value_heads = 4, c.intermediate_size = 6144;
  c.num_experts = 128, c.num_experts_per_tok = 8, c.moe_intermediate_size = 768;
  c.norm_topk_prob = false;
  c.qk_norm = QkNorm::kHead;
  return c;
}

ModelConfig mixtral_defaults() {
  ModelConfig c;
  c.num_hidden_layers = 32, c.hidden_size = 4096, c.vocab_size = 32000, c.max_position_embeddings = 131072;
  c.num_attention_heads = 32, c.num_key_value_heads = 8;
  c.num_experts = 8, c.num_experts_per_tok = 2, c.moe_intermediate_size = 14336;
  c.norm_topk_prob = true;
  c.rms_norm_eps = 1e-5, c.rope_theta = 1e6;
  c.qk_norm = QkNorm::kNone;
  return c;
}

ModelConfig olmoe_defaults() {
  ModelConfig c;
  c.num_hidden_layers = 16, c.hidden_size = 2048, c.vocab_size = 50304, c.max_position_embeddings = 4096;
  c.num_attention_heads = 16;
  c.num_experts = 64, c.num_experts_per_tok = 8, c.moe_intermediate_size = 2048;
  c.norm_topk_prob = false;
  c.rms_norm_eps = 1e-5;
  c.qk_norm = QkNorm::kFull;
  return c;
}

const std::array<Family, 3>& table() {
  static const std::array<Family, 3> families = {{
      {.model_type = "qwen3_moe",
       .architecture = "Qwen3MoeForCausalLM",
       .defaults = qwen3_moe_defaults(),
       .has_dense_layers = true,
       .off = {"attention_bias", "use_sliding_window", "clip_qkv"}},
      {.model_type = "mixtral",
       .architecture = "MixtralForCausalLM",
       .defaults = mixtral_defaults(),
       .num_experts_key = "num_local_experts",
       .moe_intermediate_size_key = "intermediate_size",
       .has_norm_topk_prob = false,
       .off = {"sliding_window", "router_jitter_noise", "clip_qkv"},
       .block = "block_sparse_moe",
       .gate = "w1",
       .up = "w3",
       .down = "w2"},
      {.model_type = "olmoe",
       .architecture = "OlmoeForCausalLM",
       .defaults = olmoe_defaults(),
       .moe_intermediate_size_key = "intermediate_size",
       .has_clip_qkv = true,
       .off = {"attention_bias"}},
  }};
  return families;
}

}  // namespace

std::span<const Family> families() {
  return table();
}

const Family* find_family(std::string_view model_type) {
  const auto it = std::ranges::find(table(), model_type, &Family::model_type);
  return it == table().end() ? nullptr : &*it;
}

const Family& family_of(const ModelConfig& config) {
  const auto it = std::ranges::find_if(
      table(), [&](const Family& family) { return family.defaults.qk_norm == config.qk_norm; });
  STEPPE_ASSERT(it != table().end(), "[model] no family has this QK-norm");
  return *it;
}

void check_family_has(const Family& family, const ModelConfig& c) {
  std::vector<std::string> faults;
  int64_t dense = 0;
  for (int64_t layer = 0; layer < c.num_hidden_layers; ++layer) dense += c.is_dense_layer(layer) ? 1 : 0;
  if (dense > 0 && !family.has_dense_layers)
    faults.push_back(fmt::format("{} layers without experts", dense));
  if (dense == c.num_hidden_layers) faults.emplace_back("a model without experts");
  if (c.shared_expert_intermediate_size > 0)
    faults.push_back(fmt::format("shared_expert_intermediate_size = {}", c.shared_expert_intermediate_size));
  if (!family.has_norm_topk_prob && c.norm_topk_prob != family.defaults.norm_topk_prob)
    faults.push_back(fmt::format("norm_topk_prob = {}", c.norm_topk_prob));
  if (c.clip_qkv > 0 && !family.has_clip_qkv) faults.push_back(fmt::format("clip_qkv = {}", c.clip_qkv));
  if (c.qk_norm == QkNorm::kFull && c.num_attention_heads * c.head_dim != c.hidden_size) {
    faults.push_back(fmt::format("QK-norm over num_attention_heads × head_dim = {} where hidden_size = {}",
                                 c.num_attention_heads * c.head_dim, c.hidden_size));
  }
  STEPPE_CHECK_VALUE(faults.empty(), "[model] {} ({}) cannot say: {}", family.architecture, family.model_type,
                     fmt::join(faults, ", "));
}

std::string stored_name(const Family& family, std::string_view tensor) {
  constexpr std::string_view kBlock = ".mlp.", kExperts = "experts.", kWeight = ".weight";
  std::string name(tensor);
  const size_t block = tensor.find(kBlock);
  if (block == std::string_view::npos) return name;
  const auto inside = tensor.substr(block + kBlock.size());
  if (inside == "gate.weight") return name.replace(block + 1, kBlock.size() - 2, family.block);
  if (!inside.starts_with(kExperts) || !tensor.ends_with(kWeight)) return name;
  // Projection first, so that the block's place still holds.
  const size_t begin = tensor.rfind('.', tensor.size() - kWeight.size() - 1) + 1;
  const auto projection = tensor.substr(begin, tensor.size() - kWeight.size() - begin);
  const auto theirs = projection == "gate_proj"   ? family.gate
                      : projection == "up_proj"   ? family.up
                      : projection == "down_proj" ? family.down
                                                  : projection;
  name.replace(begin, projection.size(), theirs);
  return name.replace(block + 1, kBlock.size() - 2, family.block);
}

}  // namespace steppe::model
