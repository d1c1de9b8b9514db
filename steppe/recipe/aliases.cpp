// Two tables for the wording of errors: other tools' names, and Steppe's names that do not work yet. A key
// leaves the second table in the commit that makes it work.
#include "steppe/recipe/unknown_keys.h"

namespace steppe::recipe {
namespace {

constexpr Alias kAliases[] = {
    // model
    {"load", "model.path"},
    {"hf_assets_path", "model.path"},
    {"model_name_or_path", "model.path"},
    {"base_model", "model.path"},
    {"num_layers", "model.num_hidden_layers"},
    {"num_query_groups", "model.num_key_value_heads"},
    {"kv_channels", "model.head_dim"},
    {"ffn_hidden_size", "model.intermediate_size"},
    {"moe_router_topk", "model.num_experts_per_tok"},
    {"num_local_experts", "model.num_experts"},
    {"n_routed_experts", "model.num_experts"},
    {"moe_ffn_hidden_size", "model.moe_intermediate_size"},
    {"moe_shared_expert_intermediate_size", "model.shared_expert_intermediate_size"},
    {"rotary_base", "model.rope_theta"},
    {"norm_epsilon", "model.rms_norm_eps"},
    {"layernorm_epsilon", "model.rms_norm_eps"},
    {"max_model_len", "model.max_position_embeddings"},
    {"qk_layernorm", "model.qk_norm"},
    {"tie_embeddings", "model.tie_word_embeddings"},
    {"bf16", "model.compute_dtype"},
    {"mixed_precision_param", "model.compute_dtype"},
    {"torch_dtype", "model.compute_dtype"},
    // router
    {"moe_router_load_balancing_type", "router.load_balancing"},
    {"moe_router_enable_expert_bias", "router.load_balancing"},
    {"moe_router_bias_update_rate", "router.bias_update_rate"},
    {"load_balance_coeff", "router.bias_update_rate"},
    {"moe_aux_loss_coeff", "router.aux_loss_coeff"},
    {"router_aux_loss_coef", "router.aux_loss_coeff"},
    {"moe_z_loss_coeff", "router.z_loss_coeff"},
    {"moe_router_force_load_balancing", "router.force_load_balancing"},
    // parallelism
    {"context_parallel_size", "parallelism.ulysses_degree"},
    {"context_parallel_degree", "parallelism.ulysses_degree"},
    {"cp_comm_type", "parallelism.ulysses_degree"},
    {"sequence_parallel_size", "parallelism.ulysses_degree"},
    {"expert_model_parallel_size", "parallelism.expert_parallel_degree"},
    {"expert_parallel_size", "parallelism.expert_parallel_degree"},
    {"autoep_size", "parallelism.expert_parallel_degree"},
    {"ep_size", "parallelism.expert_parallel_degree"},
    // dispatch, loss
    {"moe_token_dispatcher_type", "dispatch.kind"},
    {"cross_entropy_fusion_impl", "loss.kind"},
    {"chunkedlosswrapper", "loss.kind"},
    {"chunked_cross_entropy", "loss.kind"},
    // recomputation and offload
    {"recompute_granularity", "activation_checkpoint.mode"},
    {"fullac", "activation_checkpoint.mode"},
    {"selectiveac", "activation_checkpoint.mode"},
    {"gradient_checkpointing", "activation_checkpoint.mode"},
    {"tiled_mlp_num_shards", "activation_checkpoint.mlp_tile_tokens"},
    {"fine_grained_activation_offloading", "offload.activations"},
    {"activation_offloading", "offload.activations"},
    {"cpu_checkpointing", "offload.activations"},
    {"pin_memory", "offload.pin_memory"},
    // optimizer
    {"learning_rate", "optimizer.lr"},
    {"adam_beta1", "optimizer.betas"},
    {"adam_beta2", "optimizer.betas"},
    {"beta1", "optimizer.betas"},
    {"beta2", "optimizer.betas"},
    {"adam_eps", "optimizer.eps"},
    {"adam_epsilon", "optimizer.eps"},
    {"clip_grad", "optimizer.max_grad_norm"},
    {"max_norm", "optimizer.max_grad_norm"},
    {"gradient_clipping", "optimizer.max_grad_norm"},
    {"optimizer_cpu_offload", "optimizer.placement"},
    {"offload_optimizer.device", "optimizer.placement"},
    {"exp_avg_dtype", "optimizer.moments_dtype"},
    {"exp_avg_sq_dtype", "optimizer.moments_dtype"},
    {"optim", "optimizer.name"},
    // schedule
    {"lr_decay_style", "lr_scheduler.type"},
    {"lr_scheduler_type", "lr_scheduler.type"},
    {"lr_warmup_iters", "lr_scheduler.warmup_steps"},
    {"lr_warmup_fraction", "lr_scheduler.warmup_steps"},
    {"warmup_ratio", "lr_scheduler.warmup_steps"},
    {"lr_decay_iters", "lr_scheduler.decay_steps"},
    {"lr_wsd_decay_iters", "lr_scheduler.decay_steps"},
    {"decay_ratio", "lr_scheduler.decay_steps"},
    {"lr_wsd_decay_style", "lr_scheduler.decay_type"},
    {"min_lr", "lr_scheduler.min_lr_ratio"},
    {"min_lr_factor", "lr_scheduler.min_lr_ratio"},
    // training
    {"train_iters", "training.steps"},
    {"max_steps", "training.steps"},
    {"num_train_epochs", "training.epochs"},
    {"num_epochs", "training.epochs"},
    {"seq_len", "training.seq_length"},
    {"sequence_len", "training.seq_length"},
    {"max_seq_length", "training.seq_length"},
    {"local_batch_size", "training.micro_batch_size"},
    {"per_device_train_batch_size", "training.micro_batch_size"},
    {"train_micro_batch_size_per_gpu", "training.micro_batch_size"},
    {"train_batch_size", "training.global_batch_size"},
    {"accumulate_allreduce_grads_in_fp32", "training.gradient_dtype"},
    {"grad_reduce_in_bf16", "training.gradient_dtype"},
    {"mixed_precision_reduce", "training.gradient_dtype"},
    {"deterministic_mode", "training.deterministic"},
    {"full_determinism", "training.deterministic"},
    // data and validation
    {"data_path", "data.train"},
    {"datasets[].path", "data.train[].path"},
    {"datasets[].type", "data.train[].type"},
    {"datasets[].name", "data.train[].name"},
    {"datasets", "data.train"},
    {"data_cache_path", "data.prepared"},
    {"dataset_prepared_path", "data.prepared"},
    {"tokenizer_model", "data.tokenizer"},
    {"tokenizer_path", "data.tokenizer"},
    {"split", "data.val_split"},
    {"val_set_size", "data.val_split"},
    {"reset_attention_mask", "data.document_mask"},
    {"sample_packing", "data.packing"},
    {"excess_length_strategy", "data.over_length"},
    {"eval_interval", "validation.interval"},
    {"eval_steps", "validation.interval"},
    {"eval_iters", "validation.steps"},
    {"eval_on_start", "validation.at_start"},
    {"test_datasets[].path", "validation.set[].path"},
    // checkpoints
    {"save", "checkpoint.folder"},
    {"output_dir", "run.folder"},
    {"save_interval", "checkpoint.interval"},
    {"save_steps", "checkpoint.interval"},
    {"finetune", "checkpoint.load_weights_only"},
    {"keep_latest_k", "checkpoint.keep"},
    {"save_total_limit", "checkpoint.keep"},
    {"async_mode", "checkpoint.async"},
    {"resume_from_checkpoint", "checkpoint.resume"},
    // the rest
    {"log_interval", "logging.interval"},
    {"logging_steps", "logging.interval"},
    {"log_freq", "logging.interval"},
    {"tensorboard_dir", "logging.report_to"},
    {"enable_tensorboard", "logging.report_to"},
    {"moe_per_layer_logging", "logging.moe"},
    {"gpu_memory_limit", "hardware.device_memory"},
    {"distributed_timeout_minutes", "comm.timeout"},
    {"ddp_timeout", "comm.timeout"},
    {"init_timeout_seconds", "comm.init_timeout"},
    {"train_timeout_seconds", "comm.timeout"},
    {"profile_step_start", "profiler.steps"},
    {"profile_ranks", "profiler.ranks"},
};

// Names of keys, or of whole sections.
constexpr std::string_view kPlanned[] = {
    "training.epochs",
};

}  // namespace

std::span<const Alias> aliases() {
  return kAliases;
}

std::span<const std::string_view> planned_keys() {
  return kPlanned;
}

}  // namespace steppe::recipe
