#include "tests/plan/random_runs.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

namespace steppe::testing {
namespace {

template <class Value>
void set(PlannedRun& run, const char* key, const Value& value) {
  run.overrides.push_back(fmt::format("{}={}", key, value));
}

}  // namespace

int64_t RandomRuns::pick(int64_t least, int64_t most) {
  return std::uniform_int_distribution<int64_t>(least, most)(random_);
}

int64_t RandomRuns::divisor(int64_t power_of_two) {
  int64_t log = 0;
  while ((int64_t{1} << log) < power_of_two) ++log;
  return int64_t{1} << pick(0, log);
}

PlannedRun RandomRuns::large() {
  PlannedRun run;
  run.world_size = 1 << pick(0, 6);
  const int64_t kv = 1 << pick(0, 3), heads = kv << pick(0, 3);
  int64_t degree = divisor(run.world_size);
  while (heads % degree != 0) degree /= 2;
  set(run, "parallelism.ulysses_degree", degree);
  const int64_t expert = divisor(run.world_size);
  set(run, "parallelism.expert_parallel_degree", expert);
  set(run, "parallelism.vocab_parallel_degree", divisor(run.world_size));
  set(run, "model.num_hidden_layers", pick(2, 9));
  set(run, "model.first_k_dense_replace", pick(0, 1));
  set(run, "model.hidden_size", 256 * pick(1, 12));
  set(run, "model.num_attention_heads", heads), set(run, "model.num_key_value_heads", kv);
  set(run, "model.head_dim", 64 * pick(1, 2));
  set(run, "model.intermediate_size", 512 * pick(1, 8));
  set(run, "model.moe_intermediate_size", 128 * pick(1, 10));
  set(run, "model.shared_expert_intermediate_size", 256 * pick(0, 2));
  set(run, "model.num_experts", std::max<int64_t>(8, expert) * pick(1, 3));
  set(run, "model.num_experts_per_tok", pick(1, 8));
  set(run, "model.vocab_size", 1000 * pick(8, 150));
  set(run, "training.seq_length", 1000 * pick(1, 12));
  set(run, "training.micro_batch_size", pick(1, 2));
  set(run, "training.global_batch_size", run.world_size / degree * pick(1, 4));
  set(run, "dispatch.token_budget", 1 << pick(8, 13));
  set(run, "dispatch.min_tokens_per_gemm", 1 << pick(4, 10));
  set(run, "plan.routing_profile", std::vector{"balanced", "30/16", "95/4"}[pick(0, 2)]);
  set(run, "model.max_position_embeddings", 1 << 20);
  set(run, "optimizer.bucket_params", 1 << pick(16, 26));
  set(run, "offload.host_budget", fmt::format("\"{}MiB\"", pick(0, 2) ? 1 << 20 : pick(1, 2000)));
  set_operators(run);
  set_where_things_live(run);
  return run;
}

PlannedRun RandomRuns::small() {
  PlannedRun run;
  run.world_size = static_cast<int>(pick(1, 4));
  const auto some = [&](bool all) { return all ? run.world_size : int64_t{1}; };
  const int64_t degree = run.world_size == 4 && pick(0, 1) ? 2 : some(pick(0, 1));
  set(run, "parallelism.ulysses_degree", degree);
  set(run, "parallelism.expert_parallel_degree", run.world_size == 4 && pick(0, 1) ? 2 : some(pick(0, 1)));
  set(run, "parallelism.vocab_parallel_degree", run.world_size == 4 && pick(0, 1) ? 2 : some(pick(0, 1)));
  set(run, "model.num_hidden_layers", pick(2, 5));
  set(run, "model.first_k_dense_replace", pick(0, 1));
  set(run, "model.hidden_size", 16 * pick(1, 5));
  set(run, "model.num_attention_heads", 12);
  int64_t kv = std::vector{1, 2, 3, 4, 6, 12}[pick(0, 5)];
  if (kv % degree != 0 && degree % kv != 0) kv = degree;
  set(run, "model.num_key_value_heads", kv);
  set(run, "model.head_dim", 8 * pick(1, 3));
  set(run, "model.intermediate_size", 8 * pick(1, 12));
  set(run, "model.moe_intermediate_size", 8 * pick(1, 6));
  set(run, "model.shared_expert_intermediate_size", 8 * pick(0, 3));
  set(run, "model.num_experts", 12 * pick(1, 2));
  set(run, "model.num_experts_per_tok", pick(1, 4));
  set(run, "model.vocab_size", pick(40, 300));
  set(run, "training.seq_length", pick(10, 110));
  set(run, "training.micro_batch_size", pick(1, 2));
  set(run, "training.global_batch_size", run.world_size / degree * pick(1, 4));
  set(run, "dispatch.token_budget", 1 << pick(2, 6));
  set(run, "plan.routing_profile", std::vector{"balanced", "30/4", "80/2", "random", "stride"}[pick(0, 4)]);
  set(run, "optimizer.bucket_params", 1 << pick(11, 16));
  set(run, "offload.host_budget", fmt::format("\"{}KiB\"", pick(0, 2) ? 1 << 20 : pick(10, 400)));
  set_operators(run);
  set_where_things_live(run);
  return run;
}

void RandomRuns::set_operators(PlannedRun& run) {
  set(run, "model.qk_norm", std::vector{"head", "none", "full"}[pick(0, 2)]);
  const bool fp32 = pick(0, 3) == 0;
  set(run, "model.compute_dtype", fp32 ? "float32" : "bfloat16");
  set(run, "training.gradient_dtype", fp32 || pick(0, 2) ? "float32" : "bfloat16");
  set(run, "model.tie_word_embeddings", pick(0, 3) == 0);
  set(run, "router.aux_loss_coeff", pick(0, 3) ? 0.0 : 0.01);
  set(run, "router.z_loss_coeff", pick(0, 3) ? 0.0 : 0.001);
  set(run, "dispatch.kind", std::vector{"ep", "llep", "pipelined_llep"}[pick(0, 2)]);
  set(run, "loss.kind", std::vector{"tiled", "ring", "vocab_parallel", "full"}[pick(0, 3)]);
}

void RandomRuns::set_where_things_live(PlannedRun& run) {
  const int64_t mode = pick(0, 3), placement = pick(0, 3);
  set(run, "activation_checkpoint.mode", std::vector{"none", "selective", "full", "full"}[mode]);
  set(run, "offload.activations", mode > 0 && pick(0, 2) ? "sco" : "none");
  set(run, "optimizer.placement", std::vector{"resident", "cpu", "stream", "stream"}[placement]);
  set(run, "optimizer.gradients", placement > 0 && pick(0, 2) ? "host" : "device");
}

}  // namespace steppe::testing
