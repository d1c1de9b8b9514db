// From the sections of a recipe to the configuration of each component.
#pragma once

#include <cstdint>
#include <optional>

#include "steppe/data/batch_plan.h"
#include "steppe/data/config.h"
#include "steppe/layout/layout.h"
#include "steppe/model/config.h"
#include "steppe/offload/attention_outputs.h"
#include "steppe/optim/schedule.h"
#include "steppe/recipe/run_config.h"
#include "steppe/train/step.h"

namespace steppe::train {

layout::LayoutConfig layout_config(const recipe::RunConfig& run, int world_size);
layout::LayoutConstraints layout_constraints(const model::ModelConfig& model);
ops::VocabLossOptions vocab_loss_options(const recipe::LossSection& loss);
StepConfig step_config(const recipe::RunConfig& run);
// Sizes of the largest micro-batch decide what fits; hardware.ranks_per_node (default: all ranks) share
// offload.host_budget. ValueError naming it where it must hold more. `attention_output_bytes`: room that kept
// attention outputs have on a rank's device, the same on every rank (plan/attention_room.h finds it). With
// nothing given, all stay there, or none where boundaries leave the device.
offload::OffloadConfig offload_config(const recipe::RunConfig& run, const model::ModelConfig& model,
                                      const layout::LayoutConfig& layout,
                                      std::optional<offload::OutputBudgets> attention_output_bytes = {});
optim::StateOptions state_options(const recipe::RunConfig& run);
optim::ScheduleConfig schedule_config(const recipe::RunConfig& run);
at::ScalarType compute_dtype(const recipe::RunConfig& run);

// Prefixes of prepared files: data.prepared/NAME, or the paths themselves. Throws ValueError when the run has
// no training data.
data::DataConfig data_config(const recipe::RunConfig& run);
// global_batch_size, or gradient_accumulation_steps micro-batches of every group.
data::BatchShape batch_shape(const recipe::RunConfig& run, const layout::LayoutConfig& layout);

}  // namespace steppe::train
