#include "steppe/checkpoint/hugging_face_weights.h"

#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "steppe/base/error.h"
#include "steppe/base/temporary_folder.h"
#include "steppe/checkpoint/safetensors.h"
#include "steppe/comm/groups.h"
#include "steppe/layout/layout.h"
#include "steppe/model/family.h"
#include "steppe/recipe/expect_message.h"

namespace steppe::checkpoint {
namespace {

using recipe::expect_message;

model::ModelConfig small_config() {
  model::ModelConfig c;
  c.num_hidden_layers = 2, c.hidden_size = 12, c.vocab_size = 10, c.max_position_embeddings = 64;
  c.num_attention_heads = 2, c.num_key_value_heads = 1, c.head_dim = 6, c.intermediate_size = 9;
  c.num_experts = 4, c.num_experts_per_tok = 2, c.moe_intermediate_size = 5, c.first_k_dense_replace = 1;
  return c;
}

// One rank's weights, without a process group: loading never communicates.
struct Rank {
  Rank(const model::ModelConfig& config, const layout::LayoutConfig& degrees, int rank,
       at::ScalarType dtype = at::kFloat)
      : config(config), layout(degrees, rank), groups(comm::make_shape_only_groups(layout)) {
    context.dtype = dtype;
    context.counters = &counters;
    weights.emplace(config, layout, groups, context);
  }
  model::ModelConfig config;
  layout::RankLayout layout;
  comm::Groups groups;
  Counters counters;
  ops::OpContext context;
  std::optional<model::ModelWeights> weights;
};

void load(Rank& rank, const std::string& folder_or_file) {
  load_hugging_face_weights(*rank.weights, rank.config, folder_or_file);
}

// Names, shapes and values of a model, a different value for every element; small enough to be exact in bf16.
struct Model {
  explicit Model(const model::ModelConfig& config) {
    Rank whole(config, {}, 0);
    for (const auto& unit : whole.weights->units()) {
      for (const auto& slice : unit.slices()) {
        shapes[slice.tensor] = slice.shape;
        auto& v = values[slice.tensor];
        for (int64_t i = 0; i < slice.count; ++i) {
          v.push_back(static_cast<float>((std::hash<std::string>{}(slice.tensor) + i) % 251));
        }
      }
    }
  }
  void write(const std::string& path, const std::function<bool(const std::string&)>& wanted) const {
    std::vector<TensorToWrite> tensors;
    for (const auto& [name, v] : values) {
      if (wanted(name)) tensors.push_back(tensor_to_write<float>(name, shapes.at(name), v));
    }
    write_safetensors(path, tensors);
  }
  void write(const std::string& path) const {
    write(path, [](const auto&) { return true; });
  }
  // Experts of a layer in the packed tensors of newer files.
  void pack_experts(int64_t layer, int64_t experts) {
    const auto prefix = "model.layers." + std::to_string(layer) + ".mlp.experts.";
    std::vector<float> gate_up, down;
    std::vector<int64_t> shape;
    for (int64_t e = 0; e < experts; ++e) {
      const auto take = [&](const char* projection, std::vector<float>& into) {
        const auto name = prefix + std::to_string(e) + '.' + projection + ".weight";
        into.insert(into.end(), values.at(name).begin(), values.at(name).end());
        shape = shapes.at(name);
        values.erase(name);
      };
      take("gate_proj", gate_up), take("up_proj", gate_up), take("down_proj", down);
    }
    const int64_t hidden = shape[0], intermediate = shape[1];
    shapes[prefix + "gate_up_proj"] = {experts, 2 * intermediate, hidden};
    shapes[prefix + "down_proj"] = {experts, hidden, intermediate};
    values[prefix + "gate_up_proj"] = std::move(gate_up);
    values[prefix + "down_proj"] = std::move(down);
  }

  std::map<std::string, std::vector<int64_t>> shapes;
  std::map<std::string, std::vector<float>> values;
};

// Every element that the rank holds, against the whole model's values; `flat` holds elements from `begin` of
// the unit.
int64_t expect_values(const model::WeightUnit& unit, const at::Tensor& flat, int64_t begin,
                      const Model& model) {
  const auto stored = flat.to(at::kFloat);
  int64_t compared = 0;
  for (int64_t i = 0; i < stored.numel(); ++i) {
    float expected = 0;  // padding
    for (const auto& slice : unit.slices()) {
      const int64_t at = begin + i - slice.unit_begin;
      if (at >= 0 && at < slice.count) {
        expected = model.values.at(slice.tensor).at(static_cast<size_t>(slice.tensor_begin + at));
        ++compared;
      }
    }
    EXPECT_EQ(stored.const_data_ptr<float>()[i], expected) << unit.name() << " element " << begin + i;
  }
  return compared;
}

int64_t expect_loaded(model::ModelWeights& weights, const Model& model) {
  int64_t compared = 0;
  for (const auto& unit : weights.units()) {
    compared += expect_values(unit, unit.working(), unit.working_is_whole() ? 0 : unit.shard_begin(), model);
    expect_values(unit, unit.shard().master, unit.shard_begin(), model);
  }
  return compared;
}

TEST(HuggingFaceWeights, EveryRankTakesItsPart) {
  const TemporaryFolder folder;
  const Model model(small_config());
  model.write(folder / "model.safetensors");
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    for (const layout::LayoutConfig& degrees :
         {layout::LayoutConfig{1, 1, 1, 1}, layout::LayoutConfig{4, 1, 2, 4},
          layout::LayoutConfig{3, 1, 1, 3}}) {
      for (int rank = 0; rank < degrees.world_size; ++rank) {
        SCOPED_TRACE(testing::Message() << "rank " << rank << " of " << degrees.world_size);
        Rank r(small_config(), degrees, rank, dtype);
        load(r, folder / "");
        const int64_t compared = expect_loaded(*r.weights, model);
        if (degrees.world_size == 1) {
          EXPECT_EQ(compared, small_config().num_parameters());
        }
      }
    }
  }
}

TEST(HuggingFaceWeights, ShardsAndPackedExperts) {
  const TemporaryFolder folder;
  const Model model(small_config());
  auto packed = model;
  packed.pack_experts(1, 4);
  packed.write(folder / "packed.safetensors");
  Rank one(small_config(), {4, 1, 4, 1}, 2);
  load(one, folder / "packed.safetensors");
  expect_loaded(*one.weights, model);

  nlohmann::json map;
  const auto in_first = [](const std::string& name) { return name.find("layers.0") != std::string::npos; };
  model.write(folder / "model-1.safetensors", in_first);
  model.write(folder / "model-2.safetensors", [&](const auto& name) { return !in_first(name); });
  for (const auto& [name, shape] : model.shapes)
    map[name] = in_first(name) ? "model-1.safetensors" : "model-2.safetensors";
  const auto index = folder / "model.safetensors.index.json";
  const auto write_index = [&] {
    std::ofstream(index) << nlohmann::json{{"metadata", {}}, {"weight_map", map}};
  };
  write_index();
  Rank two(small_config(), {2, 1, 1, 2}, 1);
  load(two, folder / "");
  expect_loaded(*two.weights, model);

  map["model.norm.weight"] = "model-1.safetensors";
  write_index();
  expect_message<ValueError>([&] { load(two, folder / ""); },
                             {index, "model.norm.weight", "model-1.safetensors", "does not have it"});
  map["model.norm.weight"] = "/etc/passwd";
  write_index();
  expect_message<ValueError>([&] { load(two, folder / ""); }, {"must be a file name"});
  map["model.norm.weight"] = "model-3.safetensors";
  write_index();
  expect_message<RuntimeFailure>([&] { load(two, folder / ""); }, {"model-3.safetensors"});
}

// A family with names of its own, by themselves and packed.
TEST(HuggingFaceWeights, NamesOfTheFamily) {
  const TemporaryFolder folder;
  auto config = small_config();
  config.qk_norm = model::QkNorm::kNone, config.first_k_dense_replace = 0;
  const auto& mixtral = model::family_of(config);
  ASSERT_EQ(mixtral.model_type, "mixtral");
  const Model model(config);
  Model theirs = model;
  theirs.values.clear(), theirs.shapes.clear();
  for (const auto& [name, values] : model.values) {
    theirs.values[model::stored_name(mixtral, name)] = values;
    theirs.shapes[model::stored_name(mixtral, name)] = model.shapes.at(name);
  }
  ASSERT_TRUE(theirs.values.contains("model.layers.1.block_sparse_moe.experts.3.w2.weight"));
  theirs.write(folder / "model.safetensors");
  Rank one(config, {2, 1, 2, 1}, 1);
  load(one, folder / "");
  expect_loaded(*one.weights, model);

  auto packed = model;
  packed.pack_experts(0, 4), packed.pack_experts(1, 4);
  packed.write(folder / "packed.safetensors");
  Rank two(config, {2, 1, 1, 1}, 1);
  load(two, folder / "packed.safetensors");
  expect_loaded(*two.weights, model);

  // More experts than the model has, and fewer.
  auto larger = config;
  larger.num_experts = 6;
  auto six = Model(larger);
  six.pack_experts(0, 6), six.pack_experts(1, 6);
  for (const std::string router : {"model.layers.0.mlp.gate.weight", "model.layers.1.mlp.gate.weight"}) {
    six.values[router] = model.values.at(router), six.shapes[router] = model.shapes.at(router);
  }
  six.write(folder / "six.safetensors");
  expect_message<ValueError>(
      [&] { load(two, folder / "six.safetensors"); },
      {"4 of another shape: model.layers.0.mlp.experts.down_proj holds 6 experts, not 4"});
  Rank wider(larger, {2, 1, 2, 1}, 0);
  expect_message<ValueError>([&] { load(wider, folder / "packed.safetensors"); },
                             {"model.layers.1.mlp.experts.gate_up_proj holds 4 experts, not 6"});

  theirs.values.erase("model.layers.0.block_sparse_moe.experts.0.w1.weight");
  theirs.write(folder / "model.safetensors");
  expect_message<ValueError>([&] { load(one, folder / ""); },
                             {"mixtral", "1 missing: model.layers.0.block_sparse_moe.experts.0.w1.weight"});
  // Another family's file: every name that differs is listed.
  model.write(folder / "model.safetensors");
  auto normed = config;
  normed.qk_norm = model::QkNorm::kHead;
  Rank three(normed, {}, 0);
  expect_message<ValueError>([&] { load(three, folder / ""); },
                             {"qwen3_moe", "4 missing: model.layers.0.self_attn.k_norm.weight"});
}

TEST(HuggingFaceWeights, QuantizedTensorsAreNamed) {
  const TemporaryFolder folder;
  const Model model(small_config());
  const std::string name = "model.layers.1.mlp.experts.2.down_proj.weight";
  std::vector<TensorToWrite> tensors;
  for (const auto& [other, v] : model.values) {
    if (other != name) tensors.push_back(tensor_to_write<float>(other, model.shapes.at(other), v));
  }
  const std::vector<std::byte> bytes(model.values.at(name).size());
  tensors.push_back({name, model.shapes.at(name), Dtype::kF8E4M3, bytes});
  write_safetensors(folder / "model.safetensors", tensors);
  Rank r(small_config(), {4, 1, 4, 1}, 0);  // not this rank's expert
  expect_message<ValueError>([&] { load(r, folder / ""); }, {"1 quantized: " + name + " is F8_E4M3"});
}

TEST(HuggingFaceWeights, FaultsAreListedBeforeAnythingIsWritten) {
  const TemporaryFolder folder;
  auto model = Model(small_config());
  model.values.erase("model.norm.weight");
  model.values.erase("model.layers.1.mlp.experts.3.up_proj.weight");
  model.values["model.layers.7.surplus"] = {1}, model.shapes["model.layers.7.surplus"] = {1};
  model.shapes["model.layers.0.self_attn.q_proj.weight"] = {6, 24};
  model.values["model.layers.0.self_attn.rotary_emb.inv_freq"] = {1};
  model.shapes["model.layers.0.self_attn.rotary_emb.inv_freq"] = {1};
  model.write(folder / "model.safetensors");
  // Expert 3 is not this rank's, and missing all the same.
  Rank r(small_config(), {2, 1, 2, 1}, 0);
  expect_message<ValueError>(
      [&] { load(r, folder / ""); },
      {folder / "", "2 missing: model.layers.1.mlp.experts.3.up_proj.weight, model.norm.weight",
       "1 of another shape: model.layers.0.self_attn.q_proj.weight is [6, 24], not [12, 12]",
       "1 without a use: model.layers.7.surplus"});
  for (const auto& unit : r.weights->units()) EXPECT_EQ(unit.working().abs().sum().item<float>(), 0);
  const TemporaryFolder empty;
  expect_message<RuntimeFailure>([&] { load(r, empty / ""); }, {"has neither"});
}

TEST(HuggingFaceWeights, TiedEmbeddings) {
  const TemporaryFolder folder;
  auto config = small_config();
  config.tie_word_embeddings = true;
  auto model = Model(config);
  ASSERT_FALSE(model.values.contains("lm_head.weight"));
  model.write(folder / "model.safetensors");
  Rank r(config, {}, 0);
  load(r, folder / "");
  expect_loaded(*r.weights, model);
  // Some writers store both.
  model.shapes["lm_head.weight"] = model.shapes.at("model.embed_tokens.weight");
  model.values["lm_head.weight"] = model.values.at("model.embed_tokens.weight");
  model.write(folder / "model.safetensors");
  load(r, folder / "");
  model.values["lm_head.weight"].back() += 1;
  model.write(folder / "model.safetensors");
  expect_message<ValueError>([&] { load(r, folder / ""); }, {"1 without a use: lm_head.weight"});
}

TEST(HuggingFaceWeights, ReadBack) {
  const TemporaryFolder folder;
  const Model model(small_config());
  model.write(folder / "model.safetensors");
  Rank r(small_config(), {}, 0, at::kBFloat16);
  load(r, folder / "");
  for (const auto& unit : r.weights->units()) {
    unit.grad().copy_(unit.shard().master * 2);
    for (const auto& slice : unit.slices()) {
      const auto master = read_logical(unit, slice.tensor, UnitPart::kMaster);
      EXPECT_EQ(master, model.values.at(slice.tensor));
      const auto grad = read_logical(unit, slice.tensor, UnitPart::kGradient);
      ASSERT_EQ(grad.size(), master.size());
      for (size_t i = 0; i < grad.size(); ++i) EXPECT_EQ(grad[i], 2 * master[i]);
    }
  }
  expect_message<ValueError>([&] { read_logical(r.weights->head(), "model.norm.weight", UnitPart::kMaster); },
                             {"head", "model.norm.weight"});
  Rank half(small_config(), {2, 1, 1, 1}, 0);
  expect_message<ValueError>(
      [&] { read_logical(half.weights->final_norm(), "model.norm.weight", UnitPart::kMaster); },
      {"spread over 2"});
}

}  // namespace
}  // namespace steppe::checkpoint
