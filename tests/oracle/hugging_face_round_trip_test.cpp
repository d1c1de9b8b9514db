// Models that transformers saved, read by the ranks of several layouts, written again from the masters of all
// of them, and read by transformers: the same model, every tensor to the bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "steppe/base/counters.h"
#include "steppe/base/error.h"
#include "steppe/base/temporary_folder.h"
#include "steppe/checkpoint/export_weights.h"
#include "steppe/checkpoint/hugging_face_weights.h"
#include "steppe/comm/groups.h"
#include "steppe/layout/layout.h"
#include "steppe/model/hugging_face_config.h"
#include "steppe/recipe/expect_message.h"

namespace steppe {
namespace {

namespace fs = std::filesystem;

void run_peer(const TemporaryFolder& scratch, const std::string& arguments) {
  const std::string python = STEPPE_PYTHON_FOR_TEST;
  ASSERT_FALSE(python.empty()) << "CMake was not told of a Python";
  const std::string log = scratch / "log";
  const std::string command =
      "'" + python + "' '" STEPPE_HUGGING_FACE_PEER "' " + arguments + " > '" + log + "' 2>&1";
  const int status = std::system(command.c_str());
  std::ifstream stream(log);
  ASSERT_EQ(status, 0) << std::string(std::istreambuf_iterator<char>(stream), {});
}

// One rank's weights; loading never communicates.
struct Rank {
  Rank(const model::ModelConfig& config, const layout::LayoutConfig& degrees, int rank, at::ScalarType dtype)
      : layout(degrees, rank),
        groups(comm::make_shape_only_groups(layout)),
        context{at::kCPU, dtype, &counters},
        weights(config, layout, groups, context) {}
  layout::RankLayout layout;
  comm::Groups groups;
  Counters counters;
  ops::OpContext context;
  model::ModelWeights weights;
};

// Elements of the ranks' masters that fall into [begin, begin + out.size()) of a tensor. Returns how many.
int64_t copy_masters(Rank& rank, const std::string& tensor, int64_t begin, std::span<float> out) {
  int64_t copied = 0;
  for (const auto& unit : rank.weights.units()) {
    const auto& master = unit.shard().master;
    for (const auto& slice : unit.slices()) {
      if (slice.tensor != tensor) continue;
      for (size_t i = 0; i < out.size(); ++i) {
        const int64_t in_slice = begin + static_cast<int64_t>(i) - slice.tensor_begin;
        const int64_t in_shard = slice.unit_begin + in_slice - unit.shard_begin();
        if (in_slice < 0 || in_slice >= slice.count || in_shard < 0 || in_shard >= unit.shard_numel())
          continue;
        out[i] = master.const_data_ptr<float>()[in_shard];
        ++copied;
      }
    }
  }
  return copied;
}

checkpoint::Dtype dtype_of(const std::string& name) {
  if (name.ends_with("bfloat16")) return checkpoint::Dtype::kBF16;
  return name.ends_with("float16") ? checkpoint::Dtype::kF16 : checkpoint::Dtype::kF32;
}

void write_text(const std::string& path, const std::string& text) {
  std::ofstream(path) << text;
}

TEST(HuggingFaceRoundTrip, EveryFamilyComesBackToTheBit) {
  const TemporaryFolder scratch;
  const auto theirs = scratch / "theirs", ours = scratch / "ours";
  fs::create_directories(theirs);
  run_peer(scratch, "make '" + theirs + "'");
  const std::vector<layout::LayoutConfig> layouts = {{1, 1, 1, 1}, {3, 1, 3, 1}, {2, 1, 2, 2}, {4, 2, 2, 4}};
  size_t number = 0;
  for (const auto& entry : fs::directory_iterator(theirs)) {
    const auto name = entry.path().filename().string();
    SCOPED_TRACE(name);
    const auto& degrees = layouts[number++ % layouts.size()];
    const auto config_json = model::read_config_file(entry.path() / "config.json");
    const auto config = model::parse_hugging_face_config(config_json, name);
    std::vector<std::unique_ptr<Rank>> ranks;
    for (int rank = 0; rank < degrees.world_size; ++rank) {
      const auto working = number % 2 == 0 ? at::kFloat : at::kBFloat16;  // masters are fp32 either way
      ranks.push_back(std::make_unique<Rank>(config, degrees, rank, working));
      checkpoint::load_hugging_face_weights(ranks.back()->weights, config, entry.path());
    }
    const auto source = [&](const std::string& tensor, int64_t begin, std::span<float> out) {
      int64_t copied = 0;
      for (const auto& rank : ranks) copied += copy_masters(*rank, tensor, begin, out);
      // Experts and vocabulary shards have replicas; each element has one owner all the same.
      EXPECT_EQ(copied, static_cast<int64_t>(out.size())) << tensor;
    };
    const auto folder = (fs::path(ours) / name).string();
    fs::create_directories(folder);
    const int64_t shard_bytes = number % 2 == 0 ? 30'000 : 5'000'000'000;
    const auto dtype = dtype_of(name);
    const auto exported = checkpoint::export_weights(folder, config, source, {dtype, shard_bytes});
    EXPECT_EQ(exported.num_files > 1, number % 2 == 0);
    EXPECT_EQ(exported.num_bytes, config.num_parameters() * checkpoint::size_bytes_of(dtype));
    const auto torch_name = name.substr(name.rfind('_') + 1);
    write_text(folder + "/config.json", model::hugging_face_config(config, torch_name, {config_json, {}}));
    write_text(folder + "/generation_config.json", model::hugging_face_generation_config({config_json, {}}));
  }
  ASSERT_GE(number, 7U);
  run_peer(scratch, "compare '" + theirs + "' '" + ours + "'");
}

model::ModelConfig tiny_config() {
  model::ModelConfig c;
  c.num_hidden_layers = 1, c.hidden_size = 8, c.vocab_size = 5, c.max_position_embeddings = 16;
  c.num_attention_heads = 2, c.num_key_value_heads = 1, c.head_dim = 4;
  c.num_experts = 2, c.num_experts_per_tok = 1, c.moe_intermediate_size = 4;
  return c;
}

TEST(HuggingFaceExport, AValueTooLargeForHalfPrecisionIsNamed) {
  const TemporaryFolder folder;
  const auto constant = [](float value) {
    return [value](const std::string&, int64_t, std::span<float> out) { std::ranges::fill(out, value); };
  };
  const auto half = [&](float value) {
    checkpoint::export_weights(folder / "", tiny_config(), constant(value), {checkpoint::Dtype::kF16});
  };
  half(65519);  // rounds to the largest that there is
  half(std::numeric_limits<float>::infinity());
  recipe::expect_message<ValueError>([&] { half(-65520); },
                                     {"model.embed_tokens.weight", "-65520", "float16"});
}

TEST(HuggingFaceExport, WhatTheFamilyCannotSayIsRefused) {
  const TemporaryFolder folder;
  auto config = tiny_config();
  config.shared_expert_intermediate_size = 4;
  const auto source = [](const std::string&, int64_t, std::span<float>) { FAIL() << "nothing may be read"; };
  recipe::expect_message<ValueError>([&] { checkpoint::export_weights(folder / "", config, source, {}); },
                                     {"Qwen3MoeForCausalLM", "shared_expert_intermediate_size = 4"});
  EXPECT_TRUE(fs::is_empty(folder / ""));
}

TEST(HuggingFaceExport, AFolderThatIsNotThereIsNamed) {
  const auto source = [](const std::string&, int64_t, std::span<float> out) { std::ranges::fill(out, 1.F); };
  recipe::expect_message<RuntimeFailure>(
      [&] { checkpoint::export_weights("/nowhere/at/all", tiny_config(), source, {}); },
      {"/nowhere/at/all/model.safetensors", "No such file"});
}

}  // namespace
}  // namespace steppe
