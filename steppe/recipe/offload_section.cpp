#include "steppe/recipe/sections.h"

namespace steppe::recipe {

ActivationCheckpointSection read_activation_checkpoint_section(Recipe& recipe) {
  ActivationCheckpointSection section;
  section.mode = recipe.choice("activation_checkpoint.mode", {{"full", "selective", "none"}, {}});
  section.mlp_tile_tokens = recipe.integer_or("activation_checkpoint.mlp_tile_tokens", "auto");
  recipe.check(section.mlp_tile_tokens.value_or(1) >= 1, "activation_checkpoint.mlp_tile_tokens",
               "must be at least 1, or \"auto\"");
  return section;
}

OffloadSection read_offload_section(Recipe& recipe, const std::string& mode) {
  OffloadSection offload;
  offload.activations = recipe.choice("offload.activations", {{"none", "sco", "all"}, {}});
  recipe.check(offload.activations == "none" || mode != "none", "offload.activations",
               "must be \"none\" with activation_checkpoint.mode = \"none\", which keeps everything on the "
               "device");
  offload.host_budget = recipe.bytes("offload.host_budget", offload.host_budget);
  recipe.check(offload.host_budget >= 0, "offload.host_budget", "must be at least 0");
  recipe.check(offload.activations == "none" || offload.host_budget > 0, "offload.host_budget",
               "must be above 0, the bytes of host memory that the ranks of a node share, with "
               "offload.activations = \"sco\" or \"all\"");
  offload.pin_memory = recipe.flag("offload.pin_memory", offload.pin_memory);
  return offload;
}

}  // namespace steppe::recipe
