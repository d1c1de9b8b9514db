#include "steppe/train/configure.h"

#include <algorithm>
#include <filesystem>
#include <limits>

#include "steppe/base/bytes.h"
#include "steppe/base/error.h"

namespace steppe::train {

layout::LayoutConfig layout_config(const recipe::RunConfig& run, int world_size) {
  const auto& p = run.parallelism;
  return {world_size, static_cast<int>(p.ulysses_degree), static_cast<int>(p.expert_parallel_degree),
          static_cast<int>(p.vocab_parallel_degree)};
}

layout::LayoutConstraints layout_constraints(const model::ModelConfig& model) {
  return {model.num_experts, model.num_attention_heads, model.num_key_value_heads};
}

ops::DispatchOptions dispatch_options(const recipe::DispatchSection& dispatch) {
  using ops::DispatchKind;
  ops::DispatchOptions options;
  options.kind = dispatch.kind == "ep"     ? DispatchKind::kEp
                 : dispatch.kind == "llep" ? DispatchKind::kLlep
                                           : DispatchKind::kPipelinedLlep;
  options.token_budget = dispatch.token_budget;
  options.max_chunks = dispatch.max_chunks;
  options.membership =
      dispatch.membership == "contiguous" ? ops::Membership::kContiguous : ops::Membership::kStrided;
  options.tile_bytes = dispatch.tile_bytes.value_or(0);
  options.plan.replan_threshold = dispatch.replan_threshold;
  options.plan.least_loaded = {.imbalance_threshold = dispatch.imbalance_threshold,
                               .max_tokens_factor = dispatch.max_tokens_factor,
                               .min_rows = dispatch.min_tokens_per_gemm,
                               .max_helpers = dispatch.max_helpers};
  return options;
}

ops::VocabLossOptions vocab_loss_options(const recipe::LossSection& loss) {
  using ops::Circulate, ops::VocabLossKind;
  ops::VocabLossOptions options = loss.kind == "full"             ? VocabLossKind::kFull
                                  : loss.kind == "vocab_parallel" ? VocabLossKind::kVocabParallel
                                  : loss.kind == "ring"           ? VocabLossKind::kRing
                                  : loss.kind == "tiled"          ? VocabLossKind::kTiled
                                                                  : VocabLossKind::kAuto;
  options.tile_tokens = loss.tile_tokens.value_or(0);
  options.circulate = loss.circulate == "activations" ? Circulate::kActivations
                      : loss.circulate == "weights"   ? Circulate::kWeights
                                                      : Circulate::kAuto;
  options.loss_shape = {.softcap = loss.logit_softcap, .z_loss_coeff = loss.z_loss_coeff};
  return options;
}

StepConfig step_config(const recipe::RunConfig& run) {
  StepConfig step;
  step.dispatch = dispatch_options(run.dispatch);
  step.recompute = run.activation_checkpoint.mode == "none" ? Recompute::kNone : Recompute::kFull;
  step.mlp_tile_tokens = run.activation_checkpoint.mlp_tile_tokens.value_or(0);
  step.loss = vocab_loss_options(run.loss);
  step.adamw = {run.optimizer.betas[0], run.optimizer.betas[1], run.optimizer.eps,
                run.optimizer.weight_decay};
  step.buckets = {run.optimizer.bucket_params, run.optimizer.slots};
  step.max_grad_norm = run.optimizer.max_grad_norm;
  step.bias_update_rate = run.router.load_balancing == "expert_bias" ? run.router.bias_update_rate : 0;
  step.balance_coeff = run.router.aux_loss_coeff;
  step.router_z_coeff = run.router.z_loss_coeff;
  step.deterministic = run.training.deterministic;
  step.skip_nonfinite = run.training.on_nonfinite == "skip";
  return step;
}

optim::StateOptions state_options(const recipe::RunConfig& run) {
  const auto& o = run.optimizer;
  optim::StateOptions state;
  state.placement = o.placement == "cpu"      ? optim::Placement::kCpu
                    : o.placement == "stream" ? optim::Placement::kStream
                                              : optim::Placement::kResident;
  state.host_gradients = o.gradients == "host";
  state.moments_dtype = o.moments_dtype == "bfloat16" ? at::kBFloat16 : at::kFloat;
  state.gradient_dtype = run.training.gradient_dtype == "bfloat16" ? at::kBFloat16 : at::kFloat;
  state.rules.lr = o.lr;
  state.rules.freeze = o.freeze;
  for (const auto& group : o.groups)
    state.rules.groups.push_back({group.match, group.lr, group.weight_decay});
  state.pin_memory = run.offload.pin_memory;
  return state;
}

offload::OffloadConfig offload_config(const recipe::RunConfig& run, const model::ModelConfig& model,
                                      const layout::LayoutConfig& layout,
                                      std::optional<offload::OutputBudgets> attention_output_bytes) {
  using offload::BoundaryPolicy;
  const auto itemsize = static_cast<int64_t>(c10::elementSize(compute_dtype(run)));
  const int64_t row_tokens = run.training.seq_length * run.training.micro_batch_size;
  const int64_t degree = layout.ulysses_degree, num_layers = model.num_hidden_layers;
  const int64_t shard_tokens = (row_tokens + degree - 1) / degree;
  offload::OffloadConfig config;
  config.pin_memory = run.offload.pin_memory;
  config.boundaries = run.offload.activations == "sco"   ? BoundaryPolicy::kSco
                      : run.offload.activations == "all" ? BoundaryPolicy::kAll
                                                         : BoundaryPolicy::kNone;
  const int64_t share =
      offload::host_share(run.offload.host_budget, run.hardware.ranks_per_node.value_or(layout.world_size));
  const offload::BoundaryBytes boundaries{num_layers, shard_tokens, model.hidden_size, itemsize};
  config.boundary_host_bytes = offload::boundary_arena_bytes(config.boundaries, share, boundaries);
  if (config.boundaries != BoundaryPolicy::kNone) {
    config.description = fmt::format("boundaries: {} of {} layers in host memory ({} a rank)",
                                     config.boundary_host_bytes / std::max<int64_t>(1, boundaries.of_one()),
                                     num_layers, format_bytes(config.boundary_host_bytes));
  }
  if (run.activation_checkpoint.mode != "selective") return config;
  const bool travels = config.boundaries != BoundaryPolicy::kNone;
  int64_t host_bytes = travels ? share - config.boundary_host_bytes : 0;
  if (attention_output_bytes) host_bytes = std::min(host_bytes, attention_output_bytes->host_bytes);
  // A row is filled up to what the sequence group divides.
  const std::vector<offload::OutputCost> costs(
      num_layers, offload::attention_output_cost(shard_tokens * degree, model.num_attention_heads / degree,
                                                 model.head_dim, itemsize));
  config.attention_outputs =
      attention_output_bytes
          ? offload::choose_within_room(costs, {attention_output_bytes->device_bytes, host_bytes})
          : offload::choose_output_placements(
                costs, {travels ? 0 : std::numeric_limits<int64_t>::max(), host_bytes});
  config.output_host_bytes = offload::host_bytes_of(config.attention_outputs, costs);
  config.output_device_bytes = offload::device_bytes_of(config.attention_outputs, costs);
  config.description += (config.description.empty() ? "" : "; ") + describe(config.attention_outputs, costs);
  return config;
}

optim::ScheduleConfig schedule_config(const recipe::RunConfig& run) {
  const auto& s = run.lr_scheduler;
  optim::ScheduleConfig schedule;
  schedule.kind = s.type == "constant" ? optim::ScheduleKind::kConstant
                  : s.type == "linear" ? optim::ScheduleKind::kLinear
                  : s.type == "wsd"    ? optim::ScheduleKind::kWarmupStableDecay
                                       : optim::ScheduleKind::kCosine;
  schedule.lr = run.optimizer.lr;
  schedule.min_lr_ratio = s.min_lr_ratio;
  schedule.total_steps = run.training.steps;
  schedule.warmup_steps = s.warmup_steps;
  schedule.decay_steps = s.decay_steps;
  schedule.decay = s.decay_type == "cosine" ? optim::DecayKind::kCosine : optim::DecayKind::kLinear;
  return schedule;
}

at::ScalarType compute_dtype(const recipe::RunConfig& run) {
  return run.model.compute_dtype == "float32" ? at::kFloat : at::kBFloat16;
}

namespace {

// Other reasons than a missing file are the reader's to tell.
void check_prepared(const recipe::RunConfig& run, const char* section, const std::string& path,
                    const std::string& prefix) {
  std::filesystem::path index(prefix);
  if (index.extension() != ".idx" && index.extension() != ".bin") index += ".idx";
  index.replace_extension(".idx");
  std::error_code error;
  if (std::filesystem::exists(index, error) || error) return;
  STEPPE_CHECK_VALUE(
      !run.data.prepared,
      "[data] data.prepared = \"{}\": there is no {}; run `python -m steppe.data prepare RECIPE` first",
      *run.data.prepared, index.string());
  throw ValueError(fmt::format(
      "[data] [[{}]] path = \"{}\": there is no {}; without data.prepared the path is that of a "
      ".bin and .idx pair: set data.prepared and run `python -m steppe.data prepare RECIPE` first",
      section, path, index.string()));
}

}  // namespace

data::DataConfig data_config(const recipe::RunConfig& run) {
  STEPPE_CHECK_VALUE(!run.data.train.empty(),
                     "[recipe] there is nothing to train on: add a [[data.train]] section with a path");
  const auto prefix = [&](const std::string& path, const std::string& name) {
    return run.data.prepared ? (std::filesystem::path(*run.data.prepared) / name).string() : path;
  };
  const auto checked = [&](const char* section, const std::string& path, const std::string& name) {
    check_prepared(run, section, path, prefix(path, name));
    return prefix(path, name);
  };
  data::DataConfig config;
  for (const auto& source : run.data.train) {
    config.train.push_back({checked("data.train", source.path, source.name), source.name, source.weight});
  }
  for (const auto& set : run.validation.sets)
    config.validation.push_back({checked("validation.set", set.path, set.name), set.name, 1});
  config.seq_length = run.training.seq_length;
  config.packing = run.data.packing;
  config.document_mask = run.data.document_mask;
  config.reset_position_ids = run.data.reset_position_ids;
  config.over_length = data::over_length_from_name(run.data.over_length);
  config.shuffle = run.data.shuffle;
  config.val_split = run.data.val_split;
  config.seed = static_cast<uint64_t>(run.training.seed);
  return config;
}

data::BatchShape batch_shape(const recipe::RunConfig& run, const layout::LayoutConfig& layout) {
  data::BatchShape shape;
  shape.micro_batch_size = run.training.micro_batch_size;
  shape.num_groups = layout.world_size / layout.ulysses_degree;
  shape.global_batch_size = run.training.global_batch_size.value_or(
      run.training.gradient_accumulation_steps.value_or(1) * shape.micro_batch_size * shape.num_groups);
  return shape;
}

}  // namespace steppe::train
