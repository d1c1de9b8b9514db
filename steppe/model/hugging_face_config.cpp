#include "steppe/model/hugging_face_config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>
#include <vector>

#include "steppe/base/error.h"
#include "steppe/model/family.h"

namespace steppe::model {
namespace {

using nlohmann::json;

// One object of a config.json, read key by key; null counts as missing, as in transformers.
class Object {
 public:
  Object(const json& object, std::string path, std::string prefix = "")
      : object_(object), path_(std::move(path)), prefix_(std::move(prefix)) {}

  const json* find(std::string_view key) const {
    const auto it = object_.find(key);
    return it == object_.end() || it->is_null() ? nullptr : &*it;
  }
  bool is_null(std::string_view key) const {
    const auto it = object_.find(key);
    return it != object_.end() && it->is_null();
  }
  // Whole numbers may be written with a point (1.0).
  int64_t integer(std::string_view key, int64_t fallback) const {
    const json* value = find(key);
    if (value == nullptr) return fallback;
    const bool whole =
        value->is_number_integer() || (value->is_number_float() && std::abs(value->get<double>()) < 0x1p53 &&
                                       std::floor(value->get<double>()) == value->get<double>());
    require(whole, key, "a whole number");
    return value->is_number_integer() ? value->get<int64_t>() : static_cast<int64_t>(value->get<double>());
  }
  double number(std::string_view key, double fallback) const {
    const json* value = find(key);
    if (value == nullptr) return fallback;
    require(value->is_number(), key, "a number");
    return value->get<double>();
  }
  bool flag(std::string_view key, bool fallback) const {
    const json* value = find(key);
    if (value == nullptr) return fallback;
    require(value->is_boolean(), key, "true or false");
    return value->get<bool>();
  }
  std::string text(std::string_view key, std::string fallback) const {
    const json* value = find(key);
    if (value == nullptr) return fallback;
    require(value->is_string(), key, "a string");
    return value->get<std::string>();
  }
  void require(bool holds, std::string_view key, std::string_view expectation) const {
    STEPPE_CHECK_VALUE(holds, "[model] {}{} = {} ({}) must be {}", prefix_, key, object_.at(key).dump(),
                       path_, expectation);
  }
  const std::string& path() const { return path_; }

 private:
  const json& object_;
  std::string path_, prefix_;
};

// Settings whose other values change what the model computes, in ways that this version does not.
void refuse_what_is_not_built(const Object& o, const Family& family) {
  for (const auto& key : family.off) {
    const json* value = o.find(key);
    o.require(value == nullptr || *value == false || *value == 0, key,
              fmt::format("absent or off in a {} of this version", family.model_type));
  }
  if (o.find("hidden_act") != nullptr)
    o.require(o.text("hidden_act", "") == "silu", "hidden_act", "\"silu\"");
  const auto equals = [&](std::string_view key, double only) {
    if (o.find(key) != nullptr) {
      o.require(o.number(key, only) == only, key, fmt::format("{} or absent in this version", only));
    }
  };
  equals("decoder_sparse_step", 1);
  equals("attention_dropout", 0);
  equals("partial_rotary_factor", 1);
  if (const json* quantization = o.find("quantization_config")) {
    const bool named = quantization->is_object() && quantization->contains("quant_method");
    STEPPE_CHECK_VALUE(
        false,
        "[model] {} is of a model quantized by {}: masters are trained from bfloat16, float16 or "
        "float32 weights",
        o.path(), named ? (*quantization)["quant_method"].dump() : "a quantization_config");
  }
  if (const json* types = o.find("layer_types")) {
    for (const auto& type : *types) {
      o.require(type == "full_attention", "layer_types", "\"full_attention\" throughout");
    }
  }
}

RopeKind rope_kind(const Object& o, std::string_view key, const std::string& type) {
  if (type == "default") return RopeKind::kDefault;
  if (type == "linear") return RopeKind::kLinear;
  if (type == "llama3") return RopeKind::kLlama3;
  if (type == "yarn") return RopeKind::kYarn;
  o.require(false, key, "\"default\", \"linear\", \"llama3\" or \"yarn\"");
  return RopeKind::kDefault;
}

void read_scaling(const Object& o, ModelConfig& c) {
  auto& r = c.rope_scaling;
  const std::string_view type_key =
      o.find("rope_type") != nullptr ? "rope_type" : "type";  // the name in older files
  r.kind = rope_kind(o, type_key, o.text(type_key, "default"));
  c.rope_theta = o.number("rope_theta", c.rope_theta);
  if (o.find("partial_rotary_factor") != nullptr) {
    o.require(o.number("partial_rotary_factor", 1) == 1, "partial_rotary_factor",
              "1 or absent in this version");
  }
  if (r.kind == RopeKind::kDefault) return;
  const auto needed = [&](std::string_view key) {
    STEPPE_CHECK_VALUE(o.find(key) != nullptr, "[model] rope_scaling.{} is missing in {}", key, o.path());
  };
  // A length beside the rotary settings has been read before, and comes first.
  if (r.original_max_position_embeddings == 0) {
    r.original_max_position_embeddings = o.integer("original_max_position_embeddings", 0);
  }
  if (r.kind == RopeKind::kLinear) r.original_max_position_embeddings = 0;
  if (r.kind == RopeKind::kYarn && o.find("factor") == nullptr && r.original_max_position_embeddings > 0) {
    r.factor = static_cast<double>(c.max_position_embeddings) /
               static_cast<double>(r.original_max_position_embeddings);
  } else {
    needed("factor");
    r.factor = o.number("factor", 1);
  }
  if (r.kind == RopeKind::kLlama3) {
    needed("low_freq_factor"), needed("high_freq_factor");
    r.low_freq_factor = o.number("low_freq_factor", 0);
    r.high_freq_factor = o.number("high_freq_factor", 0);
  }
  if (r.kind == RopeKind::kYarn) {
    r.beta_fast = o.number("beta_fast", r.beta_fast);
    r.beta_slow = o.number("beta_slow", r.beta_slow);
    if (o.find("attention_factor") != nullptr) r.attention_factor = o.number("attention_factor", 1);
    r.mscale = o.number("mscale", 0);
    r.mscale_all_dim = o.number("mscale_all_dim", 0);
    r.truncate = o.flag("truncate", true);
  }
}

void read_rope(const Object& o, ModelConfig& c) {
  c.rope_theta = o.number("rope_theta", c.rope_theta);
  c.rope_scaling.original_max_position_embeddings = o.integer("original_max_position_embeddings", 0);
  // transformers reads rope_scaling first where a file has both.
  for (std::string_view key : {"rope_scaling", "rope_parameters"}) {
    const json* settings = o.find(key);
    if (settings == nullptr || settings->empty()) continue;
    o.require(settings->is_object(), key, "an object");
    read_scaling(Object(*settings, o.path(), std::string(key) + '.'), c);
    return;
  }
  c.rope_scaling = {};
}

// Either of two names, whatever the family calls it: files of transformers 5 differ from older ones.
int64_t read_num_experts(const Object& o, int64_t fallback) {
  const int64_t experts = o.integer("num_experts", fallback);
  const int64_t local = o.integer("num_local_experts", experts);
  if (o.find("num_experts") != nullptr && o.find("num_local_experts") != nullptr) {
    o.require(local == experts, "num_local_experts",
              fmt::format("num_experts = {}, its other name", experts));
  }
  return local;
}

void read_attention(const Object& o, const Family& family, ModelConfig& c) {
  c.num_attention_heads = o.integer("num_attention_heads", c.num_attention_heads);
  c.num_key_value_heads =
      o.integer("num_key_value_heads", o.is_null("num_key_value_heads") ? 0 : c.num_key_value_heads);
  if (c.num_key_value_heads == 0) c.num_key_value_heads = c.num_attention_heads;
  if (o.find("head_dim") == nullptr && c.num_attention_heads > 0) {
    c.head_dim = c.hidden_size / c.num_attention_heads;
  }
  c.head_dim = o.integer("head_dim", c.head_dim);
  if (!family.has_clip_qkv || o.find("clip_qkv") == nullptr) return;
  c.clip_qkv = o.number("clip_qkv", 0);
  o.require(c.clip_qkv > 0, "clip_qkv", "above 0, or absent");
}

void read_dense_layers(const Object& o, ModelConfig& c) {
  c.intermediate_size = o.integer("intermediate_size", c.intermediate_size);
  const json* layers = o.find("mlp_only_layers");
  if (layers == nullptr) return;
  o.require(layers->is_array(), "mlp_only_layers", "an array of layers");
  for (const auto& layer : *layers) {
    o.require(layer.is_number_integer(), "mlp_only_layers", "an array of layers");
    c.mlp_only_layers.push_back(layer.get<int64_t>());
  }
}

const Family& read_family(const Object& o) {
  const auto type = o.text("model_type", "");
  const auto* family = find_family(type);
  std::vector<std::string_view> known;
  for (const auto& one : families()) known.push_back(one.model_type);
  STEPPE_CHECK_VALUE(family != nullptr,
                     "[model] model_type = \"{}\" ({}) is not one that this version knows: {}", type,
                     o.path(), fmt::join(known, ", "));
  return *family;
}

}  // namespace

std::string read_config_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  STEPPE_CHECK(file.good(), "[model] cannot open {}: {}", path, std::strerror(errno));
  std::string text(std::istreambuf_iterator<char>(file), {});
  STEPPE_CHECK(!file.bad(), "[model] cannot read {}", path);
  return text;
}

ModelConfig read_hugging_face_config(const std::string& path) {
  return parse_hugging_face_config(read_config_file(path), path);
}

ModelConfig parse_hugging_face_config(const std::string& text, const std::string& path) {
  const json root = json::parse(text, nullptr, /*allow_exceptions=*/false);
  STEPPE_CHECK_VALUE(root.is_object(), "[model] {} must be a JSON object", path);
  const Object o(root, path);
  const auto& family = read_family(o);
  refuse_what_is_not_built(o, family);
  ModelConfig c = family.defaults;
  c.num_hidden_layers = o.integer("num_hidden_layers", c.num_hidden_layers);
  c.hidden_size = o.integer("hidden_size", c.hidden_size);
  read_attention(o, family, c);
  c.vocab_size = o.integer("vocab_size", c.vocab_size);
  c.rms_norm_eps = o.number("rms_norm_eps", c.rms_norm_eps);
  c.tie_word_embeddings = o.flag("tie_word_embeddings", false);
  c.max_position_embeddings = o.integer("max_position_embeddings", c.max_position_embeddings);
  c.num_experts = read_num_experts(o, c.num_experts);
  c.num_experts_per_tok = o.integer("num_experts_per_tok", c.num_experts_per_tok);
  c.moe_intermediate_size = o.integer(family.moe_intermediate_size_key, c.moe_intermediate_size);
  if (family.has_norm_topk_prob) c.norm_topk_prob = o.flag("norm_topk_prob", c.norm_topk_prob);
  c.initializer_range = o.number("initializer_range", c.initializer_range);
  if (family.has_dense_layers) read_dense_layers(o, c);
  read_rope(o, c);
  validate(c, path);
  return c;
}

}  // namespace steppe::model
