#include "steppe/recipe/sections.h"

namespace steppe::recipe {

CheckpointSection read_checkpoint_section(Recipe& recipe, const std::string& run_folder) {
  CheckpointSection checkpoint;
  // Not recorded unless it is set: the resolved recipe, run in another folder, keeps its checkpoints there.
  checkpoint.folder = recipe.text("checkpoint.folder").value_or(run_folder + "/checkpoints");
  recipe.check(!checkpoint.folder.empty(), "checkpoint.folder", "must not be empty");
  checkpoint.interval = integer_at_least(recipe, "checkpoint.interval", 0, checkpoint.interval);
  checkpoint.keep = integer_at_least(recipe, "checkpoint.keep", 0, checkpoint.keep);
  checkpoint.keep_every = integer_at_least(recipe, "checkpoint.keep_every", 0, checkpoint.keep_every);
  checkpoint.first_step = recipe.flag("checkpoint.first_step", checkpoint.first_step);
  checkpoint.resume = recipe.choice("checkpoint.resume", {{"auto", "never"}, {}});
  checkpoint.load = recipe.text("checkpoint.load");
  recipe.check(!checkpoint.load || !checkpoint.load->empty(), "checkpoint.load", "must not be empty");
  checkpoint.load_weights_only = recipe.flag("checkpoint.load_weights_only", checkpoint.load_weights_only);
  recipe.check(checkpoint.load || !checkpoint.load_weights_only, "checkpoint.load_weights_only",
               "must be false without checkpoint.load, which says whose weights");
  checkpoint.async = recipe.flag("checkpoint.async", checkpoint.async);
  checkpoint.host_budget = recipe.bytes_or("checkpoint.host_budget", "auto");
  recipe.check(checkpoint.host_budget.value_or(0) >= 0, "checkpoint.host_budget",
               "must be at least 0, or \"auto\"");
  checkpoint.grace = recipe.number("checkpoint.grace", checkpoint.grace);
  recipe.check(checkpoint.grace >= 0, "checkpoint.grace", "must be at least 0 seconds");
  checkpoint.export_dtype =
      recipe.choice("checkpoint.export_dtype", {{"bfloat16", "float16", "float32"}, {}});
  checkpoint.max_shard_size = recipe.bytes("checkpoint.max_shard_size", checkpoint.max_shard_size);
  recipe.check(checkpoint.max_shard_size >= 1, "checkpoint.max_shard_size", "must be at least 1 byte");
  return checkpoint;
}

}  // namespace steppe::recipe
