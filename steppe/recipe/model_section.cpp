#include <fmt/format.h>

#include <initializer_list>
#include <limits>

#include "steppe/base/error.h"
#include "steppe/recipe/sections.h"

namespace steppe::recipe {
namespace {

std::optional<std::int64_t> size_override(Recipe& recipe, std::string_view name, std::int64_t least = 1) {
  const std::string key = fmt::format("model.{}", name);
  const auto value = recipe.integer(key);
  recipe.check(value.value_or(least) >= least, key, fmt::format("must be at least {}", least));
  return value;
}

std::optional<double> positive(Recipe& recipe, const std::string& key) {
  const auto value = recipe.number(key);
  recipe.check(value.value_or(1) > 0, key, "must be above 0");
  return value;
}

// Keys of one kind of scaling under another would be ignored in silence.
void refuse_foreign_keys(Recipe& recipe, const std::string& section, const std::string& type,
                         std::initializer_list<const char*> names, const char* owner) {
  for (const char* name : names) {
    const std::string key = section + '.' + name;
    STEPPE_CHECK_VALUE(!recipe.has(key),
                       "[recipe] {} ({}) belongs to rope_type = {}, but {}.rope_type = \"{}\"", key,
                       recipe.place(key), owner, section, type);
  }
}

RopeScaling read_rope_scaling(Recipe& recipe, const std::string& section) {
  RopeScaling rope;
  const Choices types{{"linear", "llama3", "yarn", "default"}, {"dynamic", "longrope"}};
  const std::string type_key = section + ".rope_type";
  rope.rope_type = recipe.optional_choice(type_key, types).value_or("");
  if (rope.rope_type.empty())
    recipe.required_text(type_key, "\"linear\", \"llama3\", \"yarn\" or \"default\"");

  const bool llama3 = rope.rope_type == "llama3";
  const bool yarn = rope.rope_type == "yarn";
  if (!rope.rope_type.empty()) {
    if (rope.rope_type == "default")
      refuse_foreign_keys(recipe, section, rope.rope_type, {"factor"}, "\"linear\", \"llama3\" and \"yarn\"");
    if (!llama3)
      refuse_foreign_keys(recipe, section, rope.rope_type, {"low_freq_factor", "high_freq_factor"},
                          "\"llama3\"");
    if (!yarn)
      refuse_foreign_keys(
          recipe, section, rope.rope_type,
          {"beta_fast", "beta_slow", "attention_factor", "mscale", "mscale_all_dim", "truncate"}, "\"yarn\"");
    if (!llama3 && !yarn)
      refuse_foreign_keys(recipe, section, rope.rope_type, {"original_max_position_embeddings"},
                          "\"llama3\" and \"yarn\"");
  }

  const auto number = [&](const char* name) { return positive(recipe, section + '.' + name); };
  if (rope.rope_type != "default" && !rope.rope_type.empty()) {
    const std::string key = section + ".factor";
    rope.factor = recipe.required_number(key, "how many times longer than the trained length");
    recipe.check(*rope.factor >= 1, key, "must be at least 1");
  }
  if (llama3 || yarn) {
    const std::string key = section + ".original_max_position_embeddings";
    rope.original_max_position_embeddings =
        llama3 ? std::optional(recipe.required_integer(key, "the length that the model was trained at"))
               : recipe.integer(key);
    recipe.check(rope.original_max_position_embeddings.value_or(1) >= 1, key, "must be at least 1");
  }
  if (llama3) {
    rope.low_freq_factor =
        recipe.required_number(section + ".low_freq_factor", "as in Hugging Face's config.json");
    rope.high_freq_factor =
        recipe.required_number(section + ".high_freq_factor", "as in Hugging Face's config.json");
    recipe.check(*rope.low_freq_factor > 0, section + ".low_freq_factor", "must be above 0");
    recipe.check(*rope.high_freq_factor > *rope.low_freq_factor, section + ".high_freq_factor",
                 fmt::format("must be above low_freq_factor = {}", *rope.low_freq_factor));
  }
  if (yarn) {
    rope.beta_fast = number("beta_fast");
    rope.beta_slow = number("beta_slow");
    rope.attention_factor = number("attention_factor");
    rope.mscale = number("mscale");
    rope.mscale_all_dim = number("mscale_all_dim");
    rope.truncate = recipe.flag(section + ".truncate");
  }
  return rope;
}

// Older config.json files call it rope_scaling and keep rope_theta beside it; newer ones rope_parameters,
// with rope_theta inside. A recipe may be copied from either.
void read_rope(Recipe& recipe, ModelSection& model) {
  const std::string scaling = "model.rope_scaling";
  const std::string parameters = "model.rope_parameters";
  STEPPE_CHECK_VALUE(!recipe.has(scaling) || !recipe.has(parameters),
                     "[recipe] {} ({}) and {} ({}) are two names of one thing: keep one", scaling,
                     recipe.place(scaling), parameters, recipe.place(parameters));
  model.rope_theta = positive(recipe, "model.rope_theta");
  if (recipe.has(parameters)) {
    const std::string inner = parameters + ".rope_theta";
    const auto theta = positive(recipe, inner);
    recipe.check(!theta || !model.rope_theta, inner, "is set a second time by model.rope_theta: keep one");
    if (theta) model.rope_theta = theta;
    model.rope_scaling = read_rope_scaling(recipe, parameters);
  } else if (recipe.has(scaling)) {
    model.rope_scaling = read_rope_scaling(recipe, scaling);
  }
}

}  // namespace

ModelSection read_model_section(Recipe& recipe) {
  ModelSection model;
  model.config = recipe.text("model.config");
  recipe.check(!model.config || !model.config->empty(), "model.config", "must be the path of a config.json");
  model.path = recipe.text("model.path");
  recipe.check(!model.path || !model.path->empty(), "model.path", "must be a folder in Hugging Face's form");
  recipe.check(!model.path || !model.config, "model.path",
               "has a config.json of its own: keep it or model.config");
  model.num_hidden_layers = size_override(recipe, "num_hidden_layers");
  model.hidden_size = size_override(recipe, "hidden_size");
  model.num_attention_heads = size_override(recipe, "num_attention_heads");
  model.num_key_value_heads = size_override(recipe, "num_key_value_heads");
  model.head_dim = size_override(recipe, "head_dim");
  model.intermediate_size = size_override(recipe, "intermediate_size");
  model.vocab_size = size_override(recipe, "vocab_size");
  model.rms_norm_eps = positive(recipe, "model.rms_norm_eps");
  model.tie_word_embeddings = recipe.flag("model.tie_word_embeddings");
  model.max_position_embeddings = size_override(recipe, "max_position_embeddings");
  model.num_experts = size_override(recipe, "num_experts");
  model.num_experts_per_tok = size_override(recipe, "num_experts_per_tok");
  recipe.check(model.num_experts_per_tok.value_or(1) <=
                   model.num_experts.value_or(std::numeric_limits<std::int64_t>::max()),
               "model.num_experts_per_tok",
               fmt::format("must be at most model.num_experts = {}", model.num_experts.value_or(0)));
  model.moe_intermediate_size = size_override(recipe, "moe_intermediate_size");
  model.norm_topk_prob = recipe.flag("model.norm_topk_prob");
  model.first_k_dense_replace = size_override(recipe, "first_k_dense_replace", 0);
  model.shared_expert_intermediate_size = size_override(recipe, "shared_expert_intermediate_size", 0);
  model.qk_norm = recipe.optional_choice("model.qk_norm", {{"head", "full", "none"}, {}});
  model.clip_qkv = positive(recipe, "model.clip_qkv");
  model.compute_dtype = recipe.choice("model.compute_dtype", {{"bfloat16", "float32"}, {}});
  read_rope(recipe, model);
  return model;
}

}  // namespace steppe::recipe
