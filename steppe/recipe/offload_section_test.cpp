#include <gtest/gtest.h>

#include "steppe/base/error.h"
#include "steppe/recipe/expect_message.h"
#include "steppe/recipe/sections.h"

namespace steppe::recipe {
namespace {

struct Sections {
  ActivationCheckpointSection checkpoint;
  OffloadSection offload;
};

Sections sections_of(const std::string& text) {
  Recipe recipe = Recipe::parse(text, "recipes/offload.toml", {});
  Sections sections;
  sections.checkpoint = read_activation_checkpoint_section(recipe);
  sections.offload = read_offload_section(recipe, sections.checkpoint.mode);
  recipe.finish();
  return sections;
}

TEST(OffloadSection, ReadsEveryKey) {
  const auto sections = sections_of(R"(
[activation_checkpoint]
mode = "selective"
mlp_tile_tokens = 512
[offload]
activations = "sco"
host_budget = "96GiB"
pin_memory = false
)");
  EXPECT_EQ(sections.checkpoint.mode, "selective");
  EXPECT_EQ(sections.checkpoint.mlp_tile_tokens, 512);
  EXPECT_EQ(sections.offload.activations, "sco");
  EXPECT_EQ(sections.offload.host_budget, int64_t{96} << 30);
  EXPECT_FALSE(sections.offload.pin_memory);
}

TEST(OffloadSection, DefaultsAreThoseOfTheStructs) {
  const auto sections = sections_of("[activation_checkpoint]\nmlp_tile_tokens = \"auto\"\n");
  EXPECT_EQ(sections.checkpoint, ActivationCheckpointSection{});
  EXPECT_EQ(sections.offload, OffloadSection{});
}

TEST(OffloadSection, BadValuesNameTheKey) {
  const std::tuple<const char*, const char*, const char*> bad[] = {
      {"activation_checkpoint.mode", "[activation_checkpoint]\nmode = \"some\"", "\"full\", \"selective\""},
      {"activation_checkpoint.mlp_tile_tokens", "[activation_checkpoint]\nmlp_tile_tokens = 0", "at least 1"},
      {"offload.activations", "[offload]\nactivations = \"most\"", "\"none\", \"sco\", \"all\""},
      {"offload.activations",
       "[offload]\nactivations = \"sco\"\nhost_budget = 1\n[activation_checkpoint]\nmode = \"none\"",
       "keeps everything on the device"},
      {"offload.host_budget", "[offload]\nactivations = \"all\"", "above 0"},
  };
  for (const auto& [key, text, expectation] : bad) {
    SCOPED_TRACE(text);
    expect_message<ValueError>([&] { sections_of(text); }, {std::string(key) + " = ", expectation});
  }
}

}  // namespace
}  // namespace steppe::recipe
