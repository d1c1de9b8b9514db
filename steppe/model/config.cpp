#include "steppe/model/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string_view>

#include "steppe/base/error.h"
#include "steppe/kernels/rms_norm_backend.h"
#include "steppe/kernels/rotary_backend.h"
#include "steppe/kernels/router.h"

namespace steppe::model {
namespace {

// Beyond what anyone trains: a mistyped size must not fill the memory of the machine that plans, nor
// overflow a product of sizes.
constexpr int64_t kMostLayers = 1 << 16, kMostExperts = 1 << 16, kMostHeads = 1 << 14, kMostWidth = 1 << 24;
constexpr int64_t kMostHeadDim = 2 * kernels::kMostFrequencies;

// Names the key, its value and where it came from; the caller says what it must be.
class Checker {
 public:
  explicit Checker(const std::string& place) : place_(place) {}

  template <class Value, class... Args>
  void require(bool holds, std::string_view key, Value value, fmt::format_string<Args...> expectation,
               Args&&... args) const {
    STEPPE_CHECK_VALUE(holds, "[model] {} = {} ({}) must be {}", key, value, place_,
                       fmt::format(expectation, std::forward<Args>(args)...));
  }
  void at_least(int64_t least, std::string_view key, int64_t value) const {
    require(value >= least, key, value, "at least {}", least);
  }
  void within(int64_t least, int64_t most, std::string_view key, int64_t value) const {
    at_least(least, key, value);
    require(value <= most, key, value, "at most {}", most);
  }
  void positive(std::string_view key, double value) const {
    require(std::isfinite(value) && value > 0, key, value, "a number above 0");
  }

 private:
  const std::string& place_;
};

void validate_attention(const ModelConfig& c, const Checker& check) {
  check.within(1, kMostHeads, "num_attention_heads", c.num_attention_heads);
  check.at_least(1, "num_key_value_heads", c.num_key_value_heads);
  check.require(c.num_attention_heads % c.num_key_value_heads == 0, "num_attention_heads",
                c.num_attention_heads, "a multiple of num_key_value_heads = {}", c.num_key_value_heads);
  check.within(2, kMostHeadDim, "head_dim", c.head_dim);
  check.require(c.head_dim % 2 == 0, "head_dim", c.head_dim, "even: rotary embedding turns pairs");
  if (c.qk_norm == QkNorm::kFull) {
    check.require(c.num_attention_heads * c.head_dim <= kernels::kMostNormColumns, "num_attention_heads",
                  c.num_attention_heads, "at most {} / head_dim = {}: qk_norm = \"full\" is over all of them",
                  kernels::kMostNormColumns, kernels::kMostNormColumns / c.head_dim);
  }
  check.require(std::isfinite(c.clip_qkv) && c.clip_qkv >= 0, "clip_qkv", c.clip_qkv, "above 0, or absent");
}

int64_t num_dense_layers(const ModelConfig& c) {
  int64_t count = 0;
  for (int64_t layer = 0; layer < c.num_hidden_layers; ++layer) count += c.is_dense_layer(layer) ? 1 : 0;
  return count;
}

void validate_feed_forward(const ModelConfig& c, const Checker& check) {
  check.require(c.first_k_dense_replace >= 0 && c.first_k_dense_replace <= c.num_hidden_layers,
                "first_k_dense_replace", c.first_k_dense_replace, "0 to num_hidden_layers = {}",
                c.num_hidden_layers);
  for (const int64_t layer : c.mlp_only_layers) {
    check.require(layer >= 0 && layer < c.num_hidden_layers, "mlp_only_layers", layer,
                  "layers from 0 to num_hidden_layers - 1 = {}", c.num_hidden_layers - 1);
  }
  const int64_t dense = num_dense_layers(c);
  if (dense > 0) check.within(1, kMostWidth, "intermediate_size", c.intermediate_size);
  check.within(0, kMostWidth, "shared_expert_intermediate_size", c.shared_expert_intermediate_size);
  if (dense == c.num_hidden_layers) return;
  check.within(1, kMostExperts, "num_experts", c.num_experts);
  check.require(c.num_experts_per_tok >= 1 && c.num_experts_per_tok <= c.num_experts, "num_experts_per_tok",
                c.num_experts_per_tok, "from 1 to num_experts = {}", c.num_experts);
  check.require(c.num_experts_per_tok <= kernels::kMaxTopK, "num_experts_per_tok", c.num_experts_per_tok,
                "at most {}", kernels::kMaxTopK);
  check.within(1, kMostWidth, "moe_intermediate_size", c.moe_intermediate_size);
}

void validate_rope(const ModelConfig& c, const Checker& check) {
  const auto& r = c.rope_scaling;
  check.positive("rope_theta", c.rope_theta);
  if (r.kind == RopeKind::kDefault) return;
  check.require(std::isfinite(r.factor) && r.factor >= 1, "rope_scaling.factor", r.factor, "at least 1");
  check.at_least(0, "rope_scaling.original_max_position_embeddings", r.original_max_position_embeddings);
  if (r.kind == RopeKind::kLlama3) {
    check.positive("rope_scaling.low_freq_factor", r.low_freq_factor);
    check.require(std::isfinite(r.high_freq_factor) && r.high_freq_factor > r.low_freq_factor,
                  "rope_scaling.high_freq_factor", r.high_freq_factor, "above low_freq_factor = {}",
                  r.low_freq_factor);
  }
  if (r.kind == RopeKind::kYarn) {
    check.require(c.rope_theta > 1, "rope_theta", c.rope_theta, "above 1 for rope_type = \"yarn\"");
    check.positive("rope_scaling.beta_slow", r.beta_slow);
    check.require(std::isfinite(r.beta_fast) && r.beta_fast >= r.beta_slow, "rope_scaling.beta_fast",
                  r.beta_fast, "at least beta_slow = {}", r.beta_slow);
    if (r.attention_factor) check.positive("rope_scaling.attention_factor", *r.attention_factor);
    check.require(std::isfinite(r.mscale), "rope_scaling.mscale", r.mscale, "finite");
    check.require(std::isfinite(r.mscale_all_dim), "rope_scaling.mscale_all_dim", r.mscale_all_dim, "finite");
  }
}

struct LayerParameters {
  int64_t attention = 0;     // projections
  int64_t norms = 0;         // of the layer and of queries and keys
  int64_t feed_forward = 0;  // of a dense layer
  int64_t shared = 0;        // shared expert
  int64_t router = 0;
  int64_t expert = 0;  // one of them
};

LayerParameters layer_parameters(const ModelConfig& c) {
  const int64_t hidden = c.hidden_size;
  const int64_t q = c.num_attention_heads * c.head_dim, kv = c.num_key_value_heads * c.head_dim;
  LayerParameters p;
  p.attention = 2 * hidden * (q + kv);
  p.norms = 2 * hidden;
  if (c.qk_norm == QkNorm::kHead) p.norms += 2 * c.head_dim;
  if (c.qk_norm == QkNorm::kFull) p.norms += q + kv;
  p.feed_forward = 3 * hidden * c.intermediate_size;
  p.shared = 3 * hidden * c.shared_expert_intermediate_size;
  p.router = hidden * c.num_experts;
  p.expert = 3 * hidden * c.moe_intermediate_size;
  return p;
}

// All layers, counting `experts` of each that has them.
int64_t parameters_of_layers(const ModelConfig& c, int64_t experts, bool with_norms) {
  const auto p = layer_parameters(c);
  const int64_t dense = num_dense_layers(c), sparse = c.num_hidden_layers - dense;
  return c.num_hidden_layers * (p.attention + (with_norms ? p.norms : 0)) + dense * p.feed_forward +
         sparse * (p.router + p.shared + experts * p.expert);
}

int64_t parameters_outside_layers(const ModelConfig& c) {
  const int64_t table = c.vocab_size * c.hidden_size;
  return (c.tie_word_embeddings ? 1 : 2) * table + c.hidden_size;
}

}  // namespace

bool ModelConfig::is_dense_layer(int64_t layer) const {
  return layer < first_k_dense_replace || std::ranges::find(mlp_only_layers, layer) != mlp_only_layers.end();
}

double ModelConfig::attention_scale() const {
  return 1.0 / std::sqrt(static_cast<double>(head_dim));
}

int64_t ModelConfig::num_parameters() const {
  return parameters_outside_layers(*this) + parameters_of_layers(*this, num_experts, /*with_norms=*/true);
}

int64_t ModelConfig::num_active_parameters() const {
  return parameters_outside_layers(*this) +
         parameters_of_layers(*this, num_experts_per_tok, /*with_norms=*/true);
}

double ModelConfig::flops_per_token(int64_t length) const {
  const int64_t matrices = parameters_of_layers(*this, num_experts_per_tok, /*with_norms=*/false) +
                           vocab_size * hidden_size;  // the output projection; an embedding is looked up
  // A token attends to (length + 1)/2 others on average; scores and values are two products of that size.
  const double keys = static_cast<double>(length + 1) / 2;
  const double attention =
      4.0 * static_cast<double>(num_hidden_layers * num_attention_heads * head_dim) * keys;
  // The backward of a product is two products.
  return 3 * (2.0 * static_cast<double>(matrices) + attention);
}

void validate(const ModelConfig& c, const std::string& place) {
  const Checker check(place);
  check.within(1, kMostLayers, "num_hidden_layers", c.num_hidden_layers);
  check.within(1, kernels::kMostNormColumns, "hidden_size", c.hidden_size);
  check.at_least(1, "vocab_size", c.vocab_size);
  check.require(c.vocab_size <= std::numeric_limits<int32_t>::max(), "vocab_size", c.vocab_size,
                "below 2^31: token ids have 32 bits");
  check.at_least(1, "max_position_embeddings", c.max_position_embeddings);
  check.positive("rms_norm_eps", c.rms_norm_eps);
  check.require(std::isfinite(c.initializer_range) && c.initializer_range >= 0, "initializer_range",
                c.initializer_range, "at least 0");
  validate_attention(c, check);
  validate_feed_forward(c, check);
  validate_rope(c, check);
}

}  // namespace steppe::model
