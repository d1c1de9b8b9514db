// The keys that import and export read.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "steppe/base/error.h"
#include "steppe/recipe/expect_message.h"
#include "steppe/recipe/run_config.h"

namespace steppe::recipe {
namespace {

RunConfig read(const std::vector<std::string>& overrides) {
  auto recipe =
      Recipe::parse("[optimizer]\nlr = 1e-3\n[training]\nsteps = 1\nseq_length = 8\n", "run.toml", overrides);
  return read_run_config(recipe);
}

TEST(HuggingFaceKeys, AreRead) {
  const auto usual = read({});
  EXPECT_EQ(usual.checkpoint.export_dtype, "bfloat16");
  EXPECT_EQ(usual.checkpoint.max_shard_size, 5'000'000'000);
  EXPECT_FALSE(usual.model.path || usual.model.clip_qkv);
  const auto set = read({"model.path=models/a", "model.clip_qkv=8", "checkpoint.export_dtype=float32",
                         "checkpoint.max_shard_size=2GB"});
  EXPECT_EQ(set.model.path, "models/a");
  EXPECT_EQ(set.model.clip_qkv, 8);
  EXPECT_EQ(set.checkpoint.export_dtype, "float32");
  EXPECT_EQ(set.checkpoint.max_shard_size, 2'000'000'000);
}

TEST(HuggingFaceKeys, BadValuesAreNamed) {
  const auto refused = [](const std::vector<std::string>& overrides,
                          std::initializer_list<std::string> parts) {
    expect_message<ValueError>([&] { read(overrides); }, parts);
  };
  refused({"model.path=''"}, {"model.path", "folder"});
  refused({"model.path=a", "model.config=a/config.json"},
          {"model.path = \"a\" (--set)", "keep it or model.config"});
  refused({"model.clip_qkv=0"}, {"model.clip_qkv = 0", "above 0"});
  refused({"checkpoint.export_dtype=int8"}, {"checkpoint.export_dtype", "\"float16\""});
  refused({"checkpoint.max_shard_size=0"}, {"checkpoint.max_shard_size", "at least 1"});
}

}  // namespace
}  // namespace steppe::recipe
