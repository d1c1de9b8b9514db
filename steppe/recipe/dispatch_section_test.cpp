#include <gtest/gtest.h>

#include "steppe/base/error.h"
#include "steppe/recipe/expect_message.h"
#include "steppe/recipe/sections.h"

namespace steppe::recipe {
namespace {

DispatchSection section_of(const std::string& text) {
  Recipe recipe = Recipe::parse("[dispatch]\n" + text, "recipes/dispatch.toml", {});
  auto section = read_dispatch_section(recipe);
  recipe.finish();
  return section;
}

TEST(DispatchSection, ReadsEveryKey) {
  const auto section = section_of(R"(
kind = "llep"
token_budget = 2048
max_chunks = 6
membership = "contiguous"
tile_bytes = "64MiB"
max_helpers = 2
replan_threshold = 1.5
imbalance_threshold = 1.1
max_tokens_factor = 1.25
min_tokens_per_gemm = 64
)");
  EXPECT_EQ(section.kind, "llep");
  EXPECT_EQ(section.token_budget, 2048);
  EXPECT_EQ(section.max_chunks, 6);
  EXPECT_EQ(section.membership, "contiguous");
  EXPECT_EQ(section.tile_bytes, 64 << 20);
  EXPECT_EQ(section.max_helpers, 2);
  EXPECT_EQ(section.replan_threshold, 1.5);
  EXPECT_EQ(section.imbalance_threshold, 1.1);
  EXPECT_EQ(section.max_tokens_factor, 1.25);
  EXPECT_EQ(section.min_tokens_per_gemm, 64);
}

TEST(DispatchSection, DefaultsAreThoseOfTheStruct) {
  EXPECT_EQ(section_of(""), DispatchSection{});
  EXPECT_EQ(section_of("token_budget = \"auto\"\nmax_helpers = \"auto\"\ntile_bytes = \"auto\"\n"),
            DispatchSection{});
}

TEST(DispatchSection, BadValuesNameTheKey) {
  const std::pair<const char*, const char*> bad[] = {
      {"kind = \"all\"", "\"pipelined_llep\", \"llep\", \"ep\""},
      {"token_budget = 0", "at least 1"},
      {"max_chunks = 0", "at least 1"},
      {"membership = \"random\"", "\"strided\", \"contiguous\""},
      {"tile_bytes = 0", "at least 1"},
      {"tile_bytes = \"some\"", "such as \"64GiB\""},
      {"max_helpers = -1", "at least 0"},
      {"replan_threshold = 0.5", "at least 1"},
      {"imbalance_threshold = -1", "at least 0"},
      {"max_tokens_factor = 0", "above 0"},
      {"min_tokens_per_gemm = 0", "at least 1"},
  };
  for (const auto& [line, expectation] : bad) {
    SCOPED_TRACE(line);
    const std::string key = std::string(line).substr(0, std::string(line).find(' '));
    expect_message<ValueError>([&] { section_of(line); }, {"dispatch." + key + " = ", expectation});
  }
}

}  // namespace
}  // namespace steppe::recipe
