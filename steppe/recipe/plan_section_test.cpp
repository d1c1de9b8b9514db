#include <gtest/gtest.h>

#include "steppe/base/error.h"
#include "steppe/recipe/sections.h"

namespace steppe::recipe {
namespace {

Recipe recipe_of(const std::string& text) {
  return Recipe::parse(text, "recipes/plan.toml", {});
}

TEST(HardwareSection, ReadsSizesAndSpeeds) {
  auto recipe = recipe_of(
      "[hardware]\npreset = \"H200\"\ndevice_memory = \"100GiB\"\nhost_memory = \"1TiB\"\nlink = \"55GB\"\n"
      "ranks_per_node = 4\nthreads_per_rank = 3\n");
  const auto hardware = read_hardware_section(recipe);
  EXPECT_EQ(hardware.preset, "H200");
  EXPECT_EQ(hardware.device_memory, int64_t{100} << 30);
  EXPECT_EQ(hardware.host_memory, int64_t{1} << 40);
  EXPECT_EQ(hardware.link, 55e9);
  EXPECT_EQ(hardware.ranks_per_node, 4);
  EXPECT_EQ(hardware.threads_per_rank, 3);
  recipe.finish();
}

TEST(HardwareSection, IsTheMachineAtHandByDefault) {
  auto recipe = recipe_of("");
  EXPECT_EQ(read_hardware_section(recipe), HardwareSection{});
}

TEST(HardwareSection, RefusesWhatIsNone) {
  for (const char* line : {"preset = \"H2000\"", "device_memory = 0", "host_memory = \"0GiB\"", "link = 0",
                           "ranks_per_node = 0", "threads_per_rank = 0"}) {
    auto recipe = recipe_of(std::string("[hardware]\n") + line + "\n");
    EXPECT_THROW(read_hardware_section(recipe), ValueError) << line;
  }
}

TEST(PlanSection, ReadsItsKeys) {
  auto recipe = recipe_of("[plan]\nrouting_profile = \"80/4\"\nallow_unfit = true\n");
  const auto plan = read_plan_section(recipe);
  EXPECT_EQ(plan.routing_profile, "80/4");
  EXPECT_TRUE(plan.allow_unfit);
  recipe.finish();
  auto empty = recipe_of("[plan]\nrouting_profile = \"\"\n");
  EXPECT_THROW(read_plan_section(empty), ValueError);
}

}  // namespace
}  // namespace steppe::recipe
