#include "steppe/model/config.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "steppe/base/error.h"
#include "steppe/base/temporary_folder.h"
#include "steppe/model/family.h"
#include "steppe/model/hugging_face_config.h"
#include "steppe/recipe/expect_message.h"

namespace steppe::model {
namespace {

using nlohmann::json;
using recipe::expect_message;

std::string write(const TemporaryFolder& folder, const std::string& name, const std::string& text) {
  std::ofstream(folder / name) << text;
  return folder / name;
}

ModelConfig small_config() {
  ModelConfig c;
  c.num_hidden_layers = 3, c.hidden_size = 24, c.vocab_size = 100, c.max_position_embeddings = 64;
  c.num_attention_heads = 4, c.num_key_value_heads = 2, c.head_dim = 10, c.intermediate_size = 40;
  c.num_experts = 6, c.num_experts_per_tok = 2, c.moe_intermediate_size = 8;
  return c;
}

json as_json(const ModelConfig& c) {
  return {{"num_hidden_layers", c.num_hidden_layers},
          {"hidden_size", c.hidden_size},
          {"num_attention_heads", c.num_attention_heads},
          {"num_key_value_heads", c.num_key_value_heads},
          {"head_dim", c.head_dim},
          {"vocab_size", c.vocab_size},
          {"rms_norm_eps", c.rms_norm_eps},
          {"tie_word_embeddings", c.tie_word_embeddings},
          {"max_position_embeddings", c.max_position_embeddings},
          {"num_experts", c.num_experts},
          {"num_experts_per_tok", c.num_experts_per_tok},
          {"moe_intermediate_size", c.moe_intermediate_size},
          {"norm_topk_prob", c.norm_topk_prob},
          {"initializer_range", c.initializer_range},
          {"mlp_only_layers", c.mlp_only_layers},
          {"clip_qkv", c.clip_qkv}};
}

void run_reference(const TemporaryFolder& folder, const std::string& arguments = "") {
  const std::string python = STEPPE_PYTHON_FOR_TEST;
  ASSERT_FALSE(python.empty()) << "CMake was not told of a Python";
  const std::string command = "'" + python + "' '" STEPPE_CONFIG_REFERENCE "' '" + (folder / "") + "' " +
                              arguments + " > '" + (folder / "log") + "' 2>&1";
  const int status = std::system(command.c_str());
  std::ifstream log(folder / "log");
  ASSERT_EQ(status, 0) << std::string(std::istreambuf_iterator<char>(log), {});
}

// The script's cases, each read by us and by transformers; then written by us and read again by both.
TEST(HuggingFaceConfig, TransformersReadsWhatWeReadAndWrite) {
  const TemporaryFolder folder;
  run_reference(folder);
  std::filesystem::create_directory(folder / "written");
  const json all = json::parse(std::ifstream(folder / "expected.json"));
  ASSERT_GE(all.size(), 20U);
  for (const auto& [name, expected] : all.items()) {
    SCOPED_TRACE(name);
    const auto config = read_hugging_face_config(folder / (name + ".json"));
    EXPECT_EQ(as_json(config), expected["config"]);
    EXPECT_EQ(json(family_of(config).model_type), expected["model_type"]);
    if (family_of(config).has_dense_layers) {
      EXPECT_EQ(config.intermediate_size, expected["intermediate_size"].get<int64_t>());
    }
    EXPECT_EQ(config.num_parameters(), expected["parameters"].get<int64_t>());
    EXPECT_EQ(config.num_active_parameters(), expected["active_parameters"].get<int64_t>());
    const auto rotary = rotary_frequencies(config);
    EXPECT_NEAR(rotary.attention_factor, expected["attention_factor"].get<double>(), 1e-12);
    ASSERT_EQ(rotary.inverse.size(), expected["inverse"].size());
    for (size_t i = 0; i < rotary.inverse.size(); ++i) {
      // transformers rounds each of about a dozen fp32 operations; we round once.
      const double reference = expected["inverse"][i];
      EXPECT_NEAR(rotary.inverse[i], reference, reference * 1e-6) << "pair " << i;
    }
    const auto written = hugging_face_config(config, "bfloat16", {});
    EXPECT_EQ(as_json(parse_hugging_face_config(written, "here")), as_json(config));
    write(folder, "written/" + name + ".json", written);
  }
  run_reference(folder, "written");
  const json again = json::parse(std::ifstream(folder / "written.json"));
  ASSERT_EQ(again.size(), all.size());
  for (const auto& [name, expected] : all.items()) EXPECT_EQ(again[name], expected) << name;
}

TEST(HuggingFaceConfig, TokenIdsComeFromTheSource) {
  auto config = small_config();
  const auto written = [&](const TokenIds& ids) {
    return std::pair(json::parse(hugging_face_config(config, "float32", ids)),
                     json::parse(hugging_face_generation_config(ids)));
  };
  const auto [same, generation] = written({R"({"bos_token_id": 3, "eos_token_id": [7, 9]})", 5});
  EXPECT_EQ(same["bos_token_id"], 3);
  EXPECT_EQ(same["eos_token_id"], (json{7, 9}));
  EXPECT_FALSE(same.contains("pad_token_id"));
  EXPECT_EQ(generation["eos_token_id"], (json{7, 9}));
  const auto [fresh, fresh_generation] = written({"", 5});
  EXPECT_EQ(fresh["torch_dtype"], "float32");
  EXPECT_TRUE(fresh["bos_token_id"].is_null() && fresh["pad_token_id"].is_null());
  EXPECT_EQ(fresh["eos_token_id"], 5);
  EXPECT_EQ(fresh_generation, (json{{"_from_model_config", true}, {"eos_token_id", 5}}));
  config.shared_expert_intermediate_size = 4;
  expect_message<ValueError>([&] { hugging_face_config(config, "float32", {}); }, {"shared_expert"});
}

TEST(HuggingFaceConfig, RefusesWhatIsNotComputed) {
  const TemporaryFolder folder;
  const auto refused = [&](const char* keys, std::initializer_list<std::string> parts) {
    const auto path = write(folder, "config.json", keys);
    SCOPED_TRACE(keys);
    expect_message<ValueError>([&] { read_hugging_face_config(path); }, {path});
    expect_message<ValueError>([&] { read_hugging_face_config(path); }, parts);
  };
  refused(R"({"model_type": "llama"})", {"model_type", "llama", "qwen3_moe, mixtral, olmoe"});
  refused(R"({})", {"model_type", "qwen3_moe"});
  refused("[1]", {"must be a JSON object"});
  refused("{", {"must be a JSON object"});
  refused(R"({"model_type": "qwen3_moe", "attention_bias": true})", {"attention_bias = true"});
  refused(R"({"model_type": "qwen3_moe", "use_sliding_window": true})", {"use_sliding_window = true"});
  refused(R"({"model_type": "qwen3_moe", "hidden_act": "gelu"})", {"hidden_act = \"gelu\"", "silu"});
  refused(R"({"model_type": "qwen3_moe", "decoder_sparse_step": 2})", {"decoder_sparse_step = 2"});
  refused(R"({"model_type": "qwen3_moe", "attention_dropout": 0.1})", {"attention_dropout = 0.1"});
  refused(R"({"model_type": "qwen3_moe", "quantization_config": {"quant_method": "fp8"}})",
          {"quantized by \"fp8\""});
  refused(R"({"model_type": "mixtral", "quantization_config": {"bits": 4}})", {"quantization_config"});
  refused(R"({"model_type": "mixtral", "sliding_window": 4096})", {"sliding_window = 4096", "mixtral"});
  refused(R"({"model_type": "mixtral", "router_jitter_noise": 0.1})", {"router_jitter_noise = 0.1"});
  refused(R"({"model_type": "mixtral", "clip_qkv": 8})", {"clip_qkv = 8", "mixtral"});
  refused(R"({"model_type": "olmoe", "clip_qkv": -1})", {"clip_qkv = -1", "above 0"});
  refused(R"({"model_type": "qwen3_moe", "layer_types": ["sliding_attention"]})", {"layer_types"});
  refused(R"({"model_type": "qwen3_moe", "partial_rotary_factor": 0.5})", {"partial_rotary_factor = 0.5"});
  refused(R"({"model_type": "qwen3_moe", "hidden_size": "wide"})",
          {"hidden_size = \"wide\"", "whole number"});
  refused(R"({"model_type": "qwen3_moe", "hidden_size": 64.5})", {"hidden_size = 64.5", "whole number"});
  refused(R"({"model_type": "qwen3_moe", "num_experts": 4, "num_local_experts": 8})",
          {"num_local_experts = 8"});
  refused(R"({"model_type": "qwen3_moe", "rope_scaling": {"rope_type": "longrope", "factor": 2}})",
          {"rope_scaling.rope_type = \"longrope\"", "yarn"});
  refused(R"({"model_type": "qwen3_moe", "rope_scaling": {"rope_type": "llama3", "factor": 2}})",
          {"rope_scaling.low_freq_factor is missing"});
  refused(R"({"model_type": "qwen3_moe", "num_key_value_heads": 5})", {"num_attention_heads = 32", "= 5"});
  expect_message<RuntimeFailure>([&] { read_hugging_face_config(folder / "none.json"); },
                                 {"none.json", "No such file"});
}

RopeScaling scaling(RopeKind kind) {
  RopeScaling r;
  r.kind = kind;
  return r;
}

TEST(ModelConfig, EveryFaultIsNamed) {
  validate(small_config(), "here");
  const auto refused = [](auto change, std::initializer_list<std::string> parts) {
    auto config = small_config();
    change(config);
    expect_message<ValueError>([&] { validate(config, "here"); }, parts);
  };
  refused([](auto& c) { c.num_hidden_layers = 0; }, {"num_hidden_layers = 0 (here)", "at least 1"});
  refused([](auto& c) { c.hidden_size = -1; }, {"hidden_size = -1"});
  // Whatever a kernel or an allocation would say, the key says first.
  const int64_t mistyped = 1'000'000'000'000;
  refused([&](auto& c) { c.num_hidden_layers = mistyped; }, {"num_hidden_layers = 1000000000000", "at most"});
  refused([&](auto& c) { c.hidden_size = mistyped; }, {"hidden_size = 1000000000000", "at most 16384"});
  refused([&](auto& c) { c.head_dim = mistyped; }, {"head_dim = 1000000000000", "at most 1024"});
  refused([&](auto& c) { c.num_attention_heads = c.num_key_value_heads = mistyped; },
          {"num_attention_heads = 1000000000000", "at most"});
  refused([&](auto& c) { c.num_experts = mistyped; }, {"num_experts = 1000000000000", "at most"});
  refused([](auto& c) { c.num_experts = c.num_experts_per_tok = 65; },
          {"num_experts_per_tok = 65", "at most 64"});
  refused([&](auto& c) { c.moe_intermediate_size = mistyped; }, {"moe_intermediate_size = 1000000000000"});
  refused([&](auto& c) { c.shared_expert_intermediate_size = mistyped; },
          {"shared_expert_intermediate_size = 1000000000000"});
  refused([&](auto& c) { c.first_k_dense_replace = 1, c.intermediate_size = mistyped; },
          {"intermediate_size = 1000000000000", "at most"});
  refused([](auto& c) { c.qk_norm = QkNorm::kFull, c.num_attention_heads = 2048, c.head_dim = 16; },
          {"num_attention_heads = 2048", "at most 16384 / head_dim = 1024"});
  refused([](auto& c) { c.vocab_size = int64_t{1} << 31; }, {"vocab_size = 2147483648", "32 bits"});
  refused([](auto& c) { c.num_key_value_heads = 3; }, {"num_attention_heads = 4", "num_key_value_heads = 3"});
  refused([](auto& c) { c.head_dim = 7; }, {"head_dim = 7", "even"});
  refused([](auto& c) { c.clip_qkv = -1; }, {"clip_qkv = -1"});
  refused([](auto& c) { c.rms_norm_eps = 0; }, {"rms_norm_eps = 0"});
  refused([](auto& c) { c.num_experts_per_tok = 7; }, {"num_experts_per_tok = 7", "num_experts = 6"});
  refused([](auto& c) { c.moe_intermediate_size = 0; }, {"moe_intermediate_size = 0"});
  refused([](auto& c) { c.first_k_dense_replace = 4; }, {"first_k_dense_replace = 4", "= 3"});
  refused([](auto& c) { c.mlp_only_layers = {3}; }, {"mlp_only_layers = 3"});
  refused([](auto& c) { c.first_k_dense_replace = 1, c.intermediate_size = 0; }, {"intermediate_size = 0"});
  refused([](auto& c) { c.rope_scaling = scaling(RopeKind::kLinear), c.rope_scaling.factor = 0.5; },
          {"factor = 0.5"});
  refused([](auto& c) { c.rope_scaling = scaling(RopeKind::kLlama3), c.rope_scaling.low_freq_factor = 4; },
          {"high_freq_factor = 4", "above low_freq_factor = 4"});
  refused([](auto& c) { c.rope_scaling = scaling(RopeKind::kYarn), c.rope_scaling.beta_fast = 0.5; },
          {"beta_fast = 0.5"});
}

TEST(ModelConfig, LayersWithoutExpertsNeedNoExpertSizes) {
  auto config = small_config();
  config.first_k_dense_replace = 2, config.mlp_only_layers = {2};
  config.num_experts = config.num_experts_per_tok = config.moe_intermediate_size = 0;
  validate(config, "here");
  EXPECT_TRUE(config.is_dense_layer(1) && config.is_dense_layer(2));
}

// Counted product by product, token by token.
TEST(ModelConfig, FlopsOfATokenAreTheSumOfItsProducts) {
  auto c = small_config();
  c.first_k_dense_replace = 1, c.shared_expert_intermediate_size = 12;
  const int64_t length = 9;
  double flops = 0;
  const auto product = [&](int64_t in, int64_t out) { flops += 3 * 2.0 * static_cast<double>(in * out); };
  for (int64_t token = 0; token < length; ++token) {
    for (int64_t layer = 0; layer < 3; ++layer) {
      product(24, 40), product(24, 20), product(24, 20), product(40, 24);
      product(40, token + 1), product(token + 1, 40);
      const auto feed_forward = [&](int64_t width) {
        product(24, width), product(24, width), product(width, 24);
      };
      if (layer == 0) {
        feed_forward(40);
      } else {
        product(24, 6), feed_forward(8), feed_forward(8), feed_forward(12);
      }
    }
    product(24, 100);
  }
  EXPECT_DOUBLE_EQ(c.flops_per_token(length), flops / static_cast<double>(length));
}

recipe::RopeScaling scaling_section(const char* rope_type) {
  recipe::RopeScaling r;
  r.rope_type = rope_type;
  return r;
}

recipe::ModelSection sizes() {
  recipe::ModelSection s;
  s.num_hidden_layers = 2, s.hidden_size = 32, s.num_attention_heads = 4, s.vocab_size = 50;
  s.num_experts = 4, s.num_experts_per_tok = 2, s.moe_intermediate_size = 16;
  return s;
}

TEST(ModelConfig, FromARecipeAlone) {
  auto section = sizes();
  section.qk_norm = "full";
  section.rope_scaling = scaling_section("yarn");
  section.rope_scaling->factor = 4.0, section.rope_scaling->beta_fast = 16.0;
  const auto config = model_config(section);
  EXPECT_EQ(config.num_key_value_heads, 4);
  EXPECT_EQ(config.head_dim, 8);
  EXPECT_EQ(config.qk_norm, QkNorm::kFull);
  EXPECT_EQ(config.rope_scaling.kind, RopeKind::kYarn);
  EXPECT_EQ(config.rope_scaling.beta_fast, 16);
  EXPECT_EQ(config.rope_scaling.beta_slow, 1);

  section = sizes();
  section.hidden_size.reset(), section.num_experts.reset();
  expect_message<ValueError>([&] { model_config(section); }, {"model.hidden_size", "model.num_experts"});
  section = sizes();
  section.num_experts_per_tok = 5;
  expect_message<ValueError>([&] { model_config(section); }, {"num_experts_per_tok = 5", "recipe's [model]"});
}

TEST(ModelConfig, ARecipeOverridesTheFile) {
  const TemporaryFolder folder;
  recipe::ModelSection section;
  section.config = write(folder, "config.json",
                         R"({"model_type": "qwen3_moe", "rope_theta": 1000000.0, "mlp_only_layers": [1, 20],
                         "rope_scaling": {"rope_type": "linear", "factor": 2.0}})");
  EXPECT_EQ(model_config(section).rope_scaling.kind, RopeKind::kLinear);
  section.num_hidden_layers = 4, section.vocab_size = 1000, section.qk_norm = "none";
  section.rope_scaling = scaling_section("default");
  const auto config = model_config(section);
  EXPECT_EQ(config.num_hidden_layers, 4);
  EXPECT_EQ(config.vocab_size, 1000);
  EXPECT_EQ(config.hidden_size, 2048);
  EXPECT_EQ(config.rope_theta, 1e6);
  EXPECT_EQ(config.qk_norm, QkNorm::kNone);
  EXPECT_EQ(config.rope_scaling.kind, RopeKind::kDefault);
  EXPECT_EQ(config.mlp_only_layers, std::vector<int64_t>{1});
  section.num_experts = 4;
  expect_message<ValueError>([&] { model_config(section); },
                             {"num_experts_per_tok = 8", *section.config, "on top"});
}

TEST(ModelConfig, AFolderHasItsConfig) {
  const TemporaryFolder folder;
  recipe::ModelSection section;
  section.path = folder / "";
  expect_message<ValueError>([&] { model_config(section); },
                             {"model.path = ", folder / "config.json", "No such file"});
  recipe::ModelSection wrong;
  wrong.config = folder / "";
  expect_message<ValueError>([&] { model_config(wrong); }, {"model.config = ", "is a folder"});
  write(folder, "config.json", "");
  expect_message<ValueError>([&] { model_config(section); }, {folder / "config.json", "JSON object"});
  write(folder, "config.json", R"({"model_type": "olmoe", "clip_qkv": 8})");
  section.clip_qkv = 2, section.num_hidden_layers = 1;
  const auto config = model_config(section);
  EXPECT_EQ(config.clip_qkv, 2);
  EXPECT_EQ(config.qk_norm, QkNorm::kFull);
  EXPECT_EQ(config.moe_intermediate_size, 2048);
  section.intermediate_size = 100;  // an OLMoE has it for its experts
  expect_message<ValueError>([&] { model_config(section); }, {"olmoe", "model.moe_intermediate_size"});
}

}  // namespace
}  // namespace steppe::model
