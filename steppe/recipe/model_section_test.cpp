// [model], and the keys of an export.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "steppe/base/error.h"
#include "steppe/recipe/expect_message.h"
#include "steppe/recipe/least_recipe.h"
#include "steppe/recipe/run_config.h"

namespace steppe::recipe {
namespace {

RunConfig read(const std::string& text, const std::vector<std::string>& overrides = {}) {
  auto recipe = Recipe::parse(text, "recipes/least.toml", overrides);
  return read_run_config(recipe);
}
RunConfig with(const std::vector<std::string>& overrides) {
  return read(kLeast, overrides);
}

TEST(ModelSection, FoldersAndExportsAreRead) {
  const auto usual = with({});
  EXPECT_EQ(usual.checkpoint.export_dtype, "bfloat16");
  EXPECT_EQ(usual.checkpoint.max_shard_size, 5'000'000'000);
  EXPECT_FALSE(usual.model.path || usual.model.clip_qkv);
  const auto set = with({"model.path=models/a", "model.clip_qkv=8", "checkpoint.export_dtype=float32",
                         "checkpoint.max_shard_size=2GB"});
  EXPECT_EQ(set.model.path, "models/a");
  EXPECT_EQ(set.model.clip_qkv, 8);
  EXPECT_EQ(set.checkpoint.export_dtype, "float32");
  EXPECT_EQ(set.checkpoint.max_shard_size, 2'000'000'000);
}

TEST(ModelSection, BadFoldersAndExportsAreNamed) {
  const auto refused = [](const std::vector<std::string>& overrides,
                          std::initializer_list<std::string> parts) {
    expect_message<ValueError>([&] { with(overrides); }, parts);
  };
  refused({"model.path=''"}, {"model.path", "folder"});
  refused({"model.path=a", "model.config=a/config.json"},
          {"model.path = \"a\" (--set)", "keep it or model.config"});
  refused({"model.clip_qkv=0"}, {"model.clip_qkv = 0", "above 0"});
  refused({"checkpoint.export_dtype=int8"}, {"checkpoint.export_dtype", "\"float16\""});
  refused({"checkpoint.max_shard_size=0"}, {"checkpoint.max_shard_size", "at least 1"});
}

TEST(ModelSection, RopeScalingTakesTheKeysOfItsType) {
  const auto with = [](const std::string& lines) { return read(std::string(kLeast) + lines); };
  const auto refused = [&](const std::string& lines, std::initializer_list<std::string> parts) {
    expect_message<ValueError>([&] { with(lines); }, parts);
  };
  const RopeScaling llama3 = *with(R"([model.rope_scaling]
rope_type = "llama3"
factor = 8
low_freq_factor = 1
high_freq_factor = 4
original_max_position_embeddings = 8192
)")
                                  .model.rope_scaling;
  EXPECT_EQ(llama3.high_freq_factor, 4.0);
  EXPECT_EQ(llama3.original_max_position_embeddings, 8192);
  EXPECT_EQ(with("[model.rope_scaling]\nrope_type = \"default\"\n").model.rope_scaling->factor, std::nullopt);

  // The newer name of the same table, with rope_theta inside; the resolved recipe keeps it.
  const std::string parameters =
      "[model.rope_parameters]\nrope_type = \"linear\"\nfactor = 2\nrope_theta = 5e5\n";
  const RunConfig newer = with(parameters);
  EXPECT_EQ(newer.model.rope_theta, 5e5);
  EXPECT_EQ(newer.model.rope_scaling->factor, 2.0);
  Recipe recipe = Recipe::parse(std::string(kLeast) + parameters, "recipes/least.toml");
  read_run_config(recipe);
  EXPECT_EQ(read(recipe.resolved_toml()), newer);

  refused(parameters + "[model]\nrope_theta = 1e4\n", {"model.rope_parameters.rope_theta", "keep one"});
  refused(parameters + "[model.rope_scaling]\nrope_type = \"default\"\n",
          {"model.rope_scaling (recipes/least.toml:10)", "model.rope_parameters (recipes/least.toml:6)"});
  refused("[model.rope_scaling]\nfactor = 2\n",
          {"`model.rope_scaling.rope_type` (recipes/least.toml) is required"});
  refused("[model.rope_scaling]\nrope_type = \"linear\"\n", {"`model.rope_scaling.factor`", "is required"});
  refused("[model.rope_scaling]\nrope_type = \"linear\"\nfactor = 0.5\n", {"factor = 0.5", "at least 1"});
  refused("[model.rope_scaling]\nrope_type = \"linear\"\nfactor = 2\nbeta_fast = 32\n",
          {"model.rope_scaling.beta_fast (recipes/least.toml:9) belongs to rope_type = \"yarn\""});
  refused("[model.rope_scaling]\nrope_type = \"yarn\"\nfactor = 2\nlow_freq_factor = 1\n",
          {"low_freq_factor (recipes/least.toml:9) belongs to rope_type = \"llama3\""});
  refused(
      "[model.rope_scaling]\nrope_type = \"llama3\"\nfactor = 2\nlow_freq_factor = 4\nhigh_freq_factor = 1\n",
      {"high_freq_factor = 1.0", "must be above low_freq_factor = 4"});
}

}  // namespace
}  // namespace steppe::recipe
