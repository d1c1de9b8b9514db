#include "tests/plan/planned_run.h"

#include <ATen/Parallel.h>

#include "steppe/comm/rank_threads.h"
#include "steppe/memory/scope.h"
#include "steppe/plan/supposed_batch.h"
#include "steppe/plan/supposed_routing.h"
#include "steppe/train/assembly.h"

namespace steppe::testing {
namespace {

constexpr const char* kSmallRecipe = R"(
[model]
num_hidden_layers = 3
first_k_dense_replace = 1
hidden_size = 48
num_attention_heads = 12
num_key_value_heads = 2
head_dim = 16
intermediate_size = 64
vocab_size = 101
max_position_embeddings = 4096
rms_norm_eps = 1e-6
rope_theta = 10000.0
num_experts = 16
num_experts_per_tok = 2
moe_intermediate_size = 32
shared_expert_intermediate_size = 16
norm_topk_prob = true
tie_word_embeddings = false
compute_dtype = "float32"
[router]
load_balancing = "expert_bias"
[parallelism]
ulysses_degree = 1
[dispatch]
kind = "ep"
min_tokens_per_gemm = 4
[loss]
kind = "tiled"
[optimizer]
lr = 1e-3
[training]
steps = 10
seq_length = 100
global_batch_size = 4
)";

std::string degrees(int ulysses, int expert, int vocab, int which) {
  const char* keys[] = {"ulysses_degree", "expert_parallel_degree", "vocab_parallel_degree"};
  const int values[] = {ulysses, expert, vocab};
  return std::string("parallelism.") + keys[which] + "=" + std::to_string(values[which]);
}

std::vector<std::string> layout(int ulysses, int expert, int vocab, std::vector<std::string> more = {}) {
  for (int which = 0; which < 3; ++which) more.push_back(degrees(ulysses, expert, vocab, which));
  return more;
}

}  // namespace

recipe::RunConfig small_recipe(const PlannedRun& run) {
  auto recipe = recipe::Recipe::parse(kSmallRecipe, "small.toml", run.overrides);
  return recipe::read_run_config(recipe);
}

std::vector<PlannedRun> planned_runs() {
  const std::string pipelined = "dispatch.kind=pipelined_llep", llep = "dispatch.kind=llep",
                    hot = "plan.routing_profile=80/4", chunks = "dispatch.token_budget=16";
  const std::string bf16 = "model.compute_dtype=bfloat16", keep = "activation_checkpoint.mode=none",
                    narrow = "training.gradient_dtype=bfloat16";
  return {
      {"alone", 1, {}},
      {"alone, micro-batches of two", 1, {"training.micro_batch_size=2"}},
      {"alone, three micro-batches, the last so short that it is one chunk",
       1,
       {pipelined, "dispatch.token_budget=100", "training.micro_batch_size=2", "training.global_batch_size=5",
        "model.moe_intermediate_size=256", "training.seq_length=90"}},
      {"alone, three threads", 1, {}, 3},
      {"alone, everything kept", 1, {keep}},
      {"alone, chunks", 1, {pipelined, chunks}},
      {"alone, all tokens to one expert", 1, {"plan.routing_profile=one"}},
      {"alone, all layers dense", 1, {"model.first_k_dense_replace=3"}},
      {"alone, no dense layer",
       1,
       {"model.first_k_dense_replace=0", "model.shared_expert_intermediate_size=0"}},
      {"alone, tied", 1, {"model.tie_word_embeddings=true"}},
      {"alone, no QK-norm", 1, {"model.qk_norm=none"}},
      {"alone, full logits", 1, {"loss.kind=full"}},
      {"alone, ring", 1, {"loss.kind=ring", "loss.tile_tokens=7"}},
      {"two, ulysses", 2, layout(2, 1, 1)},
      {"two, experts", 2, layout(1, 2, 1)},
      {"two, experts, hot", 2, layout(1, 2, 1, {hot})},
      {"two, llep, hot", 2, layout(1, 2, 1, {llep, hot})},
      {"two, pipelined, hot", 2, layout(1, 2, 1, {pipelined, chunks, hot})},
      {"two, pipelined, stride", 2, layout(1, 2, 1, {pipelined, chunks, "plan.routing_profile=stride"})},
      {"two, pipelined, random", 2, layout(1, 2, 2, {pipelined, chunks, "plan.routing_profile=random"})},
      {"two, vocabulary, full", 2, layout(1, 1, 2, {"loss.kind=full"})},
      {"two, vocabulary parallel", 2, layout(1, 1, 2, {"loss.kind=vocab_parallel"})},
      {"two, ring of activations", 2, layout(2, 2, 2, {"loss.kind=ring", "loss.circulate=activations"})},
      {"two, ring of weights", 2, layout(1, 2, 2, {"loss.kind=ring", "loss.circulate=weights"})},
      {"two, everything kept", 2, layout(1, 2, 2, {keep, hot})},
      {"two, one sequence for both groups", 2, layout(1, 2, 2, {"training.global_batch_size=1"})},
      {"two, uneven groups", 2, layout(1, 2, 2, {"training.global_batch_size=3"})},
      {"two, length that D does not divide", 2, layout(2, 2, 2, {"training.seq_length=75"})},
      {"alone, some layer inputs on the host",
       1,
       {"offload.activations=sco", "offload.host_budget=\"40KiB\""}},
      {"alone, attention outputs kept", 1, {"activation_checkpoint.mode=selective"}},
      {"alone, room for two attention outputs",
       1,
       {"activation_checkpoint.mode=selective", "model.num_hidden_layers=5"},
       1,
       offload::OutputBudgets{2 * 81'600, 0}},
      {"two, layer inputs on the host, room for one attention output beside two that travel", 2,
       layout(2, 2, 1,
              {"offload.activations=sco", "offload.host_budget=\"10MiB\"",
               "activation_checkpoint.mode=selective", "model.num_hidden_layers=5"}),
       1, offload::OutputBudgets{3 * 40'800, int64_t{1} << 40}},
      {"alone, balance and z-loss", 1, {"router.aux_loss_coeff=0.01", "router.z_loss_coeff=0.001"}},
      {"alone, balance and z-loss, everything kept",
       1,
       {"router.aux_loss_coeff=0.01", "router.z_loss_coeff=0.001", keep}},
      {"two, balance and z-loss, bf16", 2,
       layout(1, 1, 2,
              {"router.aux_loss_coeff=0.01", "router.z_loss_coeff=0.001", bf16, "training.seq_length=48"})},
      {"alone, tiles", 1, {"activation_checkpoint.mlp_tile_tokens=16", "dispatch.tile_bytes=4000"}},
      {"two, layer inputs and attention outputs on the host", 2,
       layout(2, 2, 1,
              {"offload.activations=sco", "offload.host_budget=\"10MiB\"",
               "activation_checkpoint.mode=selective", "model.num_hidden_layers=5"})},
      {"two, both on the host, gradients too, a length that D does not divide", 2,
       layout(2, 1, 1,
              {"offload.activations=sco", "offload.host_budget=\"10MiB\"", "optimizer.placement=stream",
               "optimizer.gradients=host", "optimizer.bucket_params=9000", "training.seq_length=75",
               "activation_checkpoint.mode=selective", "model.num_hidden_layers=5"})},
      {"two, layer inputs and gradients on the host", 2,
       layout(1, 2, 2,
              {"offload.activations=sco", "offload.host_budget=\"10MiB\"", "optimizer.placement=stream",
               "optimizer.gradients=host", "optimizer.bucket_params=9000", "training.global_batch_size=2",
               "model.num_hidden_layers=4", "model.first_k_dense_replace=0"})},
      {"two, attention outputs kept, bf16", 2,
       layout(2, 1, 2, {bf16, "activation_checkpoint.mode=selective", "training.seq_length=48"})},
      {"two, state on the host", 2,
       layout(1, 2, 2, {"optimizer.placement=cpu", "optimizer.bucket_params=9000"})},
      {"two, state and gradients on the host", 2,
       layout(2, 2, 1,
              {"optimizer.placement=cpu", "optimizer.gradients=host", "optimizer.bucket_params=9000"})},
      {"two, streamed", 2, layout(1, 1, 2, {"optimizer.placement=stream", "optimizer.bucket_params=9000"})},
      {"two, streamed, gradients on the host, bf16", 2,
       layout(1, 2, 1,
              {bf16, "optimizer.placement=stream", "optimizer.gradients=host", "optimizer.slots=3",
               "optimizer.bucket_params=5000", "training.seq_length=48"})},
      {"alone, gradients on the host, tied",
       1,
       {"optimizer.placement=stream", "optimizer.gradients=host", "optimizer.bucket_params=5000",
        "model.tie_word_embeddings=true", "training.seq_length=32"}},
      {"alone, gradients on the host, tied, one micro-batch",
       1,
       {"optimizer.placement=cpu", "optimizer.gradients=host", "optimizer.bucket_params=5000",
        "model.tie_word_embeddings=true", "training.global_batch_size=1", "training.seq_length=32"}},
      {"two, everything kept, gradients on the host", 2,
       layout(1, 2, 2,
              {keep, "optimizer.placement=cpu", "optimizer.gradients=host", "optimizer.bucket_params=9000",
               "model.head_dim=64", "model.moe_intermediate_size=8"})},
      {"two, experts and some projections frozen", 2,
       layout(2, 2, 1, {"optimizer.freeze=[\"*.mlp.experts.*\", \"model.layers.1.self_attn.*\"]"})},
      {"two, the embedding frozen, bf16, streamed", 2,
       layout(1, 1, 2,
              {bf16, "optimizer.freeze=[\"model.embed_tokens.weight\"]", "optimizer.placement=stream",
               "optimizer.bucket_params=5000", "training.seq_length=48"})},
      {"three", 3, layout(3, 1, 3, {"model.num_key_value_heads=1", "training.seq_length=70"})},
      {"four", 4, layout(2, 4, 2, {pipelined, chunks, hot})},
      {"four, heads replicated", 4, layout(4, 2, 4, {"training.seq_length=67"})},
      {"four, everything at once", 4, layout(4, 4, 4, {pipelined, chunks, "training.micro_batch_size=2"})},
      {"alone, bf16", 1, {bf16, "training.global_batch_size=1"}},
      {"two, bf16", 2, layout(2, 2, 2, {bf16, "training.global_batch_size=2"})},
      {"two, bf16, pipelined, hot", 2,
       layout(1, 2, 2, {bf16, pipelined, chunks, hot, "training.seq_length=48"})},
      {"two, bf16, everything kept", 2, layout(1, 2, 1, {bf16, keep, "training.seq_length=48"})},
      {"alone, bf16 gradients", 1, {bf16, narrow, "training.global_batch_size=2", "training.seq_length=48"}},
      {"two, bf16 gradients, hot", 2,
       layout(2, 2, 1, {bf16, narrow, pipelined, chunks, hot, "training.seq_length=48"})},
      {"two, bf16 gradients on the host, streamed", 2,
       layout(1, 1, 2,
              {bf16, narrow, "optimizer.placement=stream", "optimizer.gradients=host",
               "optimizer.bucket_params=5000", "training.seq_length=48"})},
      {"alone, bf16 gradients on the host, tied",
       1,
       {bf16, narrow, "model.tie_word_embeddings=true", "optimizer.placement=cpu", "optimizer.gradients=host",
        "optimizer.bucket_params=5000", "training.global_batch_size=2", "training.seq_length=48"}},
  };
}

std::vector<plan::DryRun> real_run(const recipe::RunConfig& run, const PlannedRun& planned) {
  std::vector<plan::DryRun> all(planned.world_size);
  comm::run_ranks(planned.world_size, [&](int index, const c10::intrusive_ptr<c10d::Store>& store) {
    at::set_num_threads(planned.num_threads);
    const train::RankShape shape(run, index, planned.world_size);
    train::Assembly rank(run, shape, at::kCPU,
                         comm::make_groups(shape.layout, store, std::chrono::seconds(120), /*cuda=*/false),
                         plan::supposed_routing(run, shape.model, index), planned.attention_output_bytes);
    rank.weights.initialize(7);
    auto& ledger = memory::current_ledger();
    auto& real = all[index];
    real.rank = index;
    real.persistent = ledger.live_by_category();
    real.persistent_host = ledger.live_by_category(memory::Domain::kHost);
    const auto batch =
        plan::supposed_batch(run, shape.layout_config, shape.model.vocab_size,
                             {shape.layout.group_index(layout::Axis::kSequence), /*most=*/100, false});
    ledger.reset_peak();
    rank.step.train(batch, 1e-3, 1);
    real.device = ledger.peak();
    real.host = ledger.peak(memory::Domain::kHost);
    real.own_peak = ledger.peak_by_own_category();
    real.counters = rank.counters;
  });
  return all;
}

}  // namespace steppe::testing
