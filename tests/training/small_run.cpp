#include "tests/training/small_run.h"

#include <cstring>

#include "steppe/comm/rank_threads.h"

namespace steppe::testing {
namespace {

uint32_t hashed(uint64_t x) {
  x = (x ^ (x >> 31)) * 0x7fb5d329728ea185ULL;
  x = (x ^ (x >> 27)) * 0x81dadef4bc2dd44dULL;
  return static_cast<uint32_t>(x >> 33);
}

}  // namespace

model::ModelConfig small_model(int64_t num_kv_heads) {
  model::ModelConfig c;
  c.num_hidden_layers = 3;
  c.first_k_dense_replace = 1;
  c.hidden_size = 48;
  c.num_attention_heads = 12;
  c.num_key_value_heads = num_kv_heads;
  c.head_dim = 16;
  c.intermediate_size = 64;
  c.vocab_size = 101;
  c.max_position_embeddings = 64;
  c.num_experts = 12;
  c.num_experts_per_tok = 2;
  c.moe_intermediate_size = 32;
  c.shared_expert_intermediate_size = 16;
  c.initializer_range = 0.1;
  return c;
}

SmallRun small_run(int64_t num_kv_heads, layout::LayoutConfig layout) {
  SmallRun run;
  run.model = small_model(num_kv_heads);
  run.layout = layout;
  return run;
}

data::Sequence small_sequence(const SmallRun& run, int64_t index) {
  const int64_t length = run.seq_length, vocab = run.model.vocab_size;
  data::Sequence sequence;
  const int64_t first_cut = 7 + hashed(index) % 20, second_cut = first_cut + 5 + hashed(index + 1) % 18;
  sequence.document_starts = {0, static_cast<int32_t>(first_cut), static_cast<int32_t>(second_cut)};
  int64_t token = hashed(index * 977) % vocab, position = 0;
  for (int64_t i = 0; i < length; ++i) {
    if (i == first_cut || i == second_cut) {
      position = 0;
      token = hashed(index * 977 + i) % vocab;
    }
    sequence.tokens.push_back(static_cast<int32_t>(token));
    sequence.positions.push_back(static_cast<int32_t>(position++));
    const bool noisy = hashed(index * 131071 + i) % 8 == 0;
    token = noisy ? hashed(index * 524287 + i) % vocab : (token * 3 + 7) % vocab;
    const bool last = i + 1 == first_cut || i + 1 == second_cut || i + 1 == length;
    sequence.targets.push_back(last ? data::kIgnoredTarget : static_cast<int32_t>(token));
  }
  return sequence;
}

std::vector<data::Microbatch> small_batch(const SmallRun& run, int64_t step, int64_t group) {
  const data::BatchPlan plan(
      {run.global_batch_size, run.micro_batch_size, run.layout.world_size / run.layout.ulysses_degree});
  std::vector<data::Microbatch> batch;
  for (const auto& indices : plan.micro_batches(step, group)) {
    data::Microbatch micro_batch;
    for (const int64_t index : indices) micro_batch.append(small_sequence(run, index), index);
    batch.push_back(std::move(micro_batch));
  }
  return batch;
}

void RoutingRecord::put(int64_t layer, int64_t token_id, std::span<const int32_t> experts) {
  const std::lock_guard lock(mutex_);
  experts_[{layer, token_id}].assign(experts.begin(), experts.end());
}

ops::GivenRouting RoutingRecord::replay(const model::ModelConfig& model) const {
  return {[this](int64_t layer, int64_t token_id, std::span<int32_t> experts) {
            const auto& chosen = experts_.at({layer, token_id});
            std::copy(chosen.begin(), chosen.end(), experts.begin());
          },
          {model.num_experts, model.num_experts_per_tok, model.norm_topk_prob}};
}

std::vector<int64_t> RecordedTopK::choose(const ops::RoutedTokens& tokens, const at::Tensor& ids_Nk,
                                          const at::Tensor& scores_NE, const at::Tensor& bias_E,
                                          const at::Tensor& counts_E) {
  const auto counts = router_.choose(tokens, ids_Nk, scores_NE, bias_E, counts_E);
  const int64_t k = ids_Nk.size(1);
  const auto* ids = ids_Nk.const_data_ptr<int32_t>();
  for (size_t t = 0; t < tokens.token_ids.size(); ++t) {
    record_.put(tokens.layer, tokens.token_ids[t], {ids + t * k, static_cast<size_t>(k)});
  }
  return counts;
}

Rank::Rank(const SmallRun& given, int rank, comm::Groups given_groups, at::Device device,
           ops::RoutingSource& routing)
    : run(given),
      context{device, given.dtype, &counters},
      layout(given.layout, rank,
             {given.model.num_experts, given.model.num_attention_heads, given.model.num_key_value_heads}),
      groups(std::move(given_groups)),
      weights(run.model, layout, groups, context, run.state),
      step(run.step, run.model, layout, groups, context, weights, routing) {
  weights.initialize(7);
}

void on_all_ranks(const SmallRun& run, const std::function<std::unique_ptr<ops::RoutingSource>()>& routing,
                  const std::function<void(Rank&)>& body) {
  comm::run_ranks(run.layout.world_size, [&](int rank, const c10::intrusive_ptr<c10d::Store>& store) {
    const layout::RankLayout layout(run.layout, rank);
    const auto source = routing();
    Rank one(run, rank, comm::make_groups(layout, store, std::chrono::minutes(5), /*cuda=*/false), at::kCPU,
             *source);
    body(one);
  });
}

std::vector<double> train_losses(const SmallRun& run, int64_t steps,
                                 const std::function<std::unique_ptr<ops::RoutingSource>()>& routing) {
  std::vector<double> losses;
  on_all_ranks(run, routing, [&](Rank& rank) {
    for (int64_t step = 0; step < steps; ++step) {
      const auto batch = small_batch(run, step, rank.group());
      const double loss = rank.step.train(batch, run.lr, step + 1).loss;
      if (rank.layout.rank() == 0) losses.push_back(loss);
    }
  });
  return losses;
}

}  // namespace steppe::testing
