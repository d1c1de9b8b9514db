// Readers of the sections of a RunConfig; each checks its own keys.
#pragma once

#include "steppe/recipe/run_config.h"

namespace steppe::recipe {

ModelSection read_model_section(Recipe& recipe);
DispatchSection read_dispatch_section(Recipe& recipe);
ActivationCheckpointSection read_activation_checkpoint_section(Recipe& recipe);
// `mode` is activation_checkpoint.mode.
OffloadSection read_offload_section(Recipe& recipe, const std::string& mode);
OptimizerSection read_optimizer_section(Recipe& recipe);
// `steps` is training.steps, of which warm-up and decay may be shares.
SchedulerSection read_scheduler_section(Recipe& recipe, std::int64_t steps);
// `compute_dtype` is model.compute_dtype.
TrainingSection read_training_section(Recipe& recipe, const std::string& compute_dtype);
DataSection read_data_section(Recipe& recipe);
ValidationSection read_validation_section(Recipe& recipe);
CheckpointSection read_checkpoint_section(Recipe& recipe, const std::string& run_folder);
HardwareSection read_hardware_section(Recipe& recipe);
PlanSection read_plan_section(Recipe& recipe);
// `steps` is training.steps, which no step may exceed.
ProfilerSection read_profiler_section(Recipe& recipe, std::int64_t steps);

// Whole numbers with a lower bound, the commonest check.
std::int64_t integer_at_least(Recipe& recipe, std::string_view key, std::int64_t least,
                              std::int64_t fallback);

}  // namespace steppe::recipe
