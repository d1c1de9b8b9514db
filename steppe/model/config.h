// The shape of a decoder-only Mixture-of-Experts language model of the Qwen3-MoE, Mixtral or OLMoE kind.
// Field names are those of Hugging Face's config.json for Qwen3-MoE.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace steppe::model {

enum class QkNorm { kNone, kHead, kFull };  // over each head (Qwen3), over the whole width (OLMoE)

enum class RopeKind { kDefault, kLinear, kLlama3, kYarn };

struct RopeScaling {
  RopeKind kind = RopeKind::kDefault;
  double factor = 1;
  int64_t original_max_position_embeddings = 0;      // llama3, yarn; 0: max_position_embeddings
  double low_freq_factor = 1, high_freq_factor = 4;  // llama3
  double beta_fast = 32, beta_slow = 1;              // yarn
  std::optional<double> attention_factor;  // yarn; otherwise 0.1·ln(factor) + 1, or from the mscales
  double mscale = 0, mscale_all_dim = 0;   // yarn, DeepSeek's
  bool truncate = true;                    // yarn: round the correction range outwards
};

struct ModelConfig {
  int64_t num_hidden_layers = 0;
  int64_t hidden_size = 0;  // H
  int64_t num_attention_heads = 0;
  int64_t num_key_value_heads = 0;
  int64_t head_dim = 0;
  int64_t intermediate_size = 0;  // of dense layers
  int64_t vocab_size = 0;         // V
  double rms_norm_eps = 1e-6;
  bool tie_word_embeddings = false;
  double rope_theta = 10000;
  RopeScaling rope_scaling;
  int64_t max_position_embeddings = 0;
  int64_t num_experts = 0;            // E
  int64_t num_experts_per_tok = 0;    // k
  int64_t moe_intermediate_size = 0;  // I
  bool norm_topk_prob = true;
  int64_t first_k_dense_replace = 0;            // leading dense layers
  std::vector<int64_t> mlp_only_layers;         // further dense layers, as in Qwen3-MoE
  int64_t shared_expert_intermediate_size = 0;  // 0: no shared expert; its output is added ungated
  QkNorm qk_norm = QkNorm::kHead;
  double clip_qkv = 0;  // queries (after QK-norm), keys and values are clamped to ±this; 0: not
  double initializer_range = 0.02;

  bool is_dense_layer(int64_t layer) const;
  double attention_scale() const;  // 1/√head_dim
  int64_t num_parameters() const;
  // Parameters that a token meets: experts counted k of E.
  int64_t num_active_parameters() const;
  // Floating-point operations per token of forward and backward without recomputation, at a row of `length`
  // tokens.
  double flops_per_token(int64_t length) const;
};

// Throws ValueError with the key in `place` (a file or a recipe) for a shape that no model can have.
void validate(const ModelConfig& config, const std::string& place);

// Inverse frequencies of the rotary embedding, head_dim/2 of them, and what cosines and sines are multiplied
// by. Formulas: linear (Chen et al. 2023), Llama 3's piecewise scaling, YaRN (Peng et al. 2023), as in
// Hugging Face's modeling_rope_utils.
struct RotaryFrequencies {
  std::vector<float> inverse;
  double attention_factor = 1;
};
RotaryFrequencies rotary_frequencies(const ModelConfig& config);

}  // namespace steppe::model
