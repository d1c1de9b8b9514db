#include "steppe/recipe/run_config.h"

#include <fmt/format.h>

#include <algorithm>

#include "steppe/recipe/sections.h"

namespace steppe::recipe {
namespace {

RunSection read_run_section(Recipe& recipe) {
  RunSection run;
  run.name = recipe.text("run.name", recipe.stem());
  recipe.check(!run.name.empty() && run.name.find('/') == std::string::npos, "run.name",
               "must be a file name: not empty, no \"/\"");
  run.folder = recipe.text("run.folder", "runs/" + run.name);
  recipe.check(!run.folder.empty(), "run.folder", "must not be empty");
  return run;
}

RouterSection read_router_section(Recipe& recipe) {
  RouterSection router;
  router.load_balancing = recipe.choice("router.load_balancing", {{"none", "expert_bias"}, {}});
  router.bias_update_rate = recipe.number("router.bias_update_rate", router.bias_update_rate);
  recipe.check(router.bias_update_rate > 0, "router.bias_update_rate", "must be above 0");
  router.aux_loss_coeff = recipe.number("router.aux_loss_coeff", router.aux_loss_coeff);
  recipe.check(router.aux_loss_coeff >= 0, "router.aux_loss_coeff", "must be at least 0");
  router.z_loss_coeff = recipe.number("router.z_loss_coeff", router.z_loss_coeff);
  recipe.check(router.z_loss_coeff >= 0, "router.z_loss_coeff", "must be at least 0");
  router.force_load_balancing = recipe.flag("router.force_load_balancing", router.force_load_balancing);
  return router;
}

ParallelismSection read_parallelism_section(Recipe& recipe) {
  ParallelismSection parallelism;
  parallelism.ulysses_degree = integer_at_least(recipe, "parallelism.ulysses_degree", 1, 1);
  parallelism.expert_parallel_degree = integer_at_least(recipe, "parallelism.expert_parallel_degree", 1, 1);
  parallelism.vocab_parallel_degree = integer_at_least(recipe, "parallelism.vocab_parallel_degree", 1, 1);
  return parallelism;
}

LossSection read_loss_section(Recipe& recipe) {
  LossSection loss;
  loss.kind = recipe.choice("loss.kind", {{"auto", "tiled", "ring", "vocab_parallel", "full"}, {}});
  const bool tiles = loss.kind != "vocab_parallel" && loss.kind != "full";
  loss.tile_tokens = recipe.integer_or("loss.tile_tokens", "auto");
  recipe.check(loss.tile_tokens.value_or(1) >= 1, "loss.tile_tokens", "must be at least 1, or \"auto\"");
  recipe.check(tiles || !loss.tile_tokens, "loss.tile_tokens",
               fmt::format("must be \"auto\" with loss.kind = \"{}\", which has no tiles", loss.kind));
  loss.circulate = recipe.choice("loss.circulate", {{"auto", "activations", "weights"}, {}});
  recipe.check(loss.kind == "ring" || loss.circulate == "auto", "loss.circulate",
               fmt::format("must be \"auto\" with loss.kind = \"{}\": only a ring circulates", loss.kind));
  loss.z_loss_coeff = recipe.number("loss.z_loss_coeff", loss.z_loss_coeff);
  recipe.check(loss.z_loss_coeff >= 0, "loss.z_loss_coeff", "must be at least 0 (0: off)");
  loss.logit_softcap = recipe.number("loss.logit_softcap", loss.logit_softcap);
  recipe.check(loss.logit_softcap >= 0, "loss.logit_softcap", "must be at least 0 (0: off)");
  loss.ignore_index = recipe.integer("loss.ignore_index", loss.ignore_index);
  // A token id there would silently drop that token from the loss.
  recipe.check(loss.ignore_index < 0, "loss.ignore_index", "must be below 0, where no token id is");
  return loss;
}

LoggingSection read_logging_section(Recipe& recipe, const std::string& run_name) {
  LoggingSection logging;
  logging.interval = integer_at_least(recipe, "logging.interval", 1, logging.interval);
  logging.report_to = recipe.texts("logging.report_to", logging.report_to);
  const bool known =
      std::all_of(logging.report_to.begin(), logging.report_to.end(),
                  [](const std::string& place) { return place == "jsonl" || place == "tensorboard"; });
  recipe.check(known, "logging.report_to", "must be a list of \"jsonl\" and \"tensorboard\"");
  logging.run_name = recipe.text("logging.run_name", run_name);
  logging.moe = recipe.choice("logging.moe", {{"brief", "detailed"}, {}});
  return logging;
}

CommSection read_comm_section(Recipe& recipe) {
  CommSection comm;
  comm.init_timeout = recipe.number("comm.init_timeout", comm.init_timeout);
  recipe.check(comm.init_timeout > 0, "comm.init_timeout", "must be above 0 seconds");
  comm.timeout = recipe.number("comm.timeout", comm.timeout);
  recipe.check(comm.timeout > 0, "comm.timeout", "must be above 0 seconds");
  return comm;
}

}  // namespace

std::int64_t integer_at_least(Recipe& recipe, std::string_view key, std::int64_t least,
                              std::int64_t fallback) {
  const std::int64_t value = recipe.integer(key, fallback);
  recipe.check(value >= least, key, fmt::format("must be at least {}", least));
  return value;
}

RunConfig read_run_config(Recipe& recipe) {
  RunConfig config;
  config.run = read_run_section(recipe);
  config.model = read_model_section(recipe);
  config.router = read_router_section(recipe);
  config.parallelism = read_parallelism_section(recipe);
  config.dispatch = read_dispatch_section(recipe);
  config.loss = read_loss_section(recipe);
  config.activation_checkpoint = read_activation_checkpoint_section(recipe);
  config.offload = read_offload_section(recipe, config.activation_checkpoint.mode);
  config.optimizer = read_optimizer_section(recipe);
  config.training = read_training_section(recipe, config.model.compute_dtype);
  config.lr_scheduler = read_scheduler_section(recipe, config.training.steps);
  config.data = read_data_section(recipe);
  config.validation = read_validation_section(recipe);
  config.checkpoint = read_checkpoint_section(recipe, config.run.folder);
  config.logging = read_logging_section(recipe, config.run.name);
  config.hardware = read_hardware_section(recipe);
  config.comm = read_comm_section(recipe);
  config.plan = read_plan_section(recipe);
  config.profiler = read_profiler_section(recipe, config.training.steps);
  recipe.finish();
  return config;
}

}  // namespace steppe::recipe
