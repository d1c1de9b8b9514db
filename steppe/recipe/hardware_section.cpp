#include "steppe/recipe/sections.h"

namespace steppe::recipe {

HardwareSection read_hardware_section(Recipe& recipe) {
  HardwareSection hardware;
  hardware.preset = recipe.choice("hardware.preset", {{"auto", "A100", "H100", "H200", "B200"}, {}});
  hardware.device_memory = recipe.bytes("hardware.device_memory");
  recipe.check(hardware.device_memory.value_or(1) > 0, "hardware.device_memory", "must be above 0");
  hardware.host_memory = recipe.bytes("hardware.host_memory");
  recipe.check(hardware.host_memory.value_or(1) > 0, "hardware.host_memory", "must be above 0");
  if (const auto link = recipe.bytes("hardware.link")) hardware.link = static_cast<double>(*link);
  recipe.check(hardware.link.value_or(1) > 0, "hardware.link", "must be above 0 bytes per second");
  hardware.ranks_per_node = recipe.integer("hardware.ranks_per_node");
  recipe.check(hardware.ranks_per_node.value_or(1) >= 1, "hardware.ranks_per_node", "must be at least 1");
  hardware.threads_per_rank = recipe.integer_or("hardware.threads_per_rank", "auto");
  recipe.check(hardware.threads_per_rank.value_or(1) >= 1, "hardware.threads_per_rank",
               "must be at least 1, or \"auto\"");
  return hardware;
}

}  // namespace steppe::recipe
