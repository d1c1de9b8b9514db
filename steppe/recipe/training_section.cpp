#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "steppe/recipe/sections.h"

namespace steppe::recipe {

SchedulerSection read_scheduler_section(Recipe& recipe, std::int64_t steps) {
  SchedulerSection scheduler;
  scheduler.type = recipe.choice("lr_scheduler.type", {{"cosine", "constant", "linear", "wsd"}, {}});

  const std::string warmup_key = "lr_scheduler.warmup_steps";
  const double warmup = recipe.number(warmup_key, 0);
  const bool is_share = warmup > 0 && warmup < 1;
  recipe.check(warmup >= 0 && (is_share || std::trunc(warmup) == warmup), warmup_key,
               "must be a whole number of steps, or a share of training.steps between 0 and 1");
  // training.steps = 0 stands for "missing", which finish() reports.
  recipe.check(steps == 0 || warmup <= static_cast<double>(steps), warmup_key,
               fmt::format("must be at most training.steps = {}", steps));
  scheduler.warmup_steps = std::llround(is_share ? warmup * static_cast<double>(steps) : warmup);
  recipe.record(warmup_key, scheduler.warmup_steps);

  const std::string decay_key = "lr_scheduler.decay_steps";
  const std::int64_t after_warmup = std::max<std::int64_t>(0, steps - scheduler.warmup_steps);
  const auto decay = recipe.integer_or(decay_key, "auto");
  if (scheduler.type == "constant") {
    recipe.check(decay.value_or(0) == 0, decay_key,
                 "must be 0 or \"auto\" with lr_scheduler.type = \"constant\"");
  } else {
    recipe.check(decay.value_or(0) >= 0, decay_key, "must be at least 0, or \"auto\"");
    recipe.check(steps == 0 || decay.value_or(0) <= after_warmup, decay_key,
                 fmt::format("must be at most the {} steps that follow warm-up", after_warmup));
    const std::int64_t tenth = std::max<std::int64_t>(1, std::llround(0.1 * static_cast<double>(steps)));
    scheduler.decay_steps =
        decay.value_or(scheduler.type == "wsd" ? std::min(tenth, after_warmup) : after_warmup);
  }
  recipe.record(decay_key, scheduler.decay_steps);

  scheduler.decay_type = recipe.choice("lr_scheduler.decay_type", {{"linear", "cosine"}, {}});
  scheduler.min_lr_ratio = recipe.number("lr_scheduler.min_lr_ratio", scheduler.min_lr_ratio);
  recipe.check(scheduler.min_lr_ratio >= 0 && scheduler.min_lr_ratio <= 1, "lr_scheduler.min_lr_ratio",
               "must be from 0 to 1");
  return scheduler;
}

TrainingSection read_training_section(Recipe& recipe, const std::string& compute_dtype) {
  TrainingSection training;
  training.steps =
      recipe.required_integer("training.steps", "optimizer steps of the whole run, unless training.epochs");
  recipe.check(training.steps >= 1, "training.steps", "must be at least 1");
  training.epochs = recipe.number("training.epochs");
  recipe.check(training.epochs.value_or(1) > 0, "training.epochs", "must be above 0");
  training.seq_length = recipe.required_integer("training.seq_length", "tokens of a sequence");
  recipe.check(training.seq_length >= 1, "training.seq_length", "must be at least 1");
  training.micro_batch_size =
      integer_at_least(recipe, "training.micro_batch_size", 1, training.micro_batch_size);

  const std::string global_key = "training.global_batch_size";
  const std::string accumulation_key = "training.gradient_accumulation_steps";
  training.global_batch_size = recipe.integer(global_key);
  recipe.check(training.global_batch_size.value_or(1) >= 1, global_key, "must be at least 1");
  if (training.global_batch_size) {
    training.gradient_accumulation_steps = recipe.integer(accumulation_key);
    recipe.check(
        !training.gradient_accumulation_steps, accumulation_key,
        fmt::format("says the same thing as {} = {}: keep one", global_key, *training.global_batch_size));
  } else {
    training.gradient_accumulation_steps = integer_at_least(recipe, accumulation_key, 1, 1);
  }

  training.gradient_dtype = recipe.choice("training.gradient_dtype", {{"float32", "bfloat16"}, {}});
  recipe.check(training.gradient_dtype == "float32" || compute_dtype == "bfloat16", "training.gradient_dtype",
               fmt::format("must be \"float32\" with model.compute_dtype = \"{}\": gradients are not kept in "
                           "fewer bits than the weights",
                           compute_dtype));
  training.seed = integer_at_least(recipe, "training.seed", 0, training.seed);
  training.deterministic = recipe.flag("training.deterministic", training.deterministic);
  training.on_nonfinite = recipe.choice("training.on_nonfinite", {{"stop", "skip"}, {}});
  return training;
}

}  // namespace steppe::recipe
