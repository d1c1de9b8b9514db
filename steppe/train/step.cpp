#include "steppe/train/step.h"

#include <fmt/format.h>

#include <algorithm>

#include "steppe/comm/collectives.h"
#include "steppe/kernels/pointwise.h"
#include "steppe/kernels/rms_norm.h"
#include "steppe/memory/scope.h"
#include "steppe/train/balance_loss.h"
#include "steppe/train/gradient_buffer.h"

namespace steppe::train {

using memory::Category;
using offload::SavedName;

// From a micro-batch's forward to its backward.
struct Step::MicrobatchState {
  const DeviceBatch& batch;
  Accumulators& sums;
  int64_t num_tokens;  // of the step, over all ranks
  offload::SavedStore saved;
  std::vector<model::LayerState> layers;
  at::Tensor balance_dscores_LE{};  // known once the forward is done
};

Step::Step(const StepConfig& config, const model::ModelConfig& model, const layout::RankLayout& layout,
           comm::Groups& groups, const ops::OpContext& context, model::ModelWeights& weights,
           ops::RoutingSource& routing)
    : config_(config),
      model_(model),
      layout_(layout),
      groups_(groups),
      context_(context),
      weights_(weights),
      link_(weights.state_options().on_host() ? optim::make_host_link(context)
                                              : optim::make_idle_link(context)),
      gradients_(context, weights, link_),
      optimizer_(config.adamw, config.buckets, weights.state_options(), context, link_, weights.shards()),
      frequencies_(model::rotary_frequencies(model)),
      layer_context_{
          context, model, groups, routing, config.dispatch, config.mlp_tile_tokens, config.deterministic},
      offload_(config.offload, context) {}

StepResult Step::train(std::span<const data::Microbatch> micro_batches, double lr, int64_t step) {
  auto result = accumulate(micro_batches);
  update(result, lr, step);
  return result;
}

StepResult Step::accumulate(std::span<const data::Microbatch> micro_batches) {
  const auto sizes = agree_on_sizes(layout_, groups_, model_.vocab_size, micro_batches);
  local_load_.assign(model_.num_hidden_layers, {});
  auto sums = make_accumulators();
  const GradientStore::StepScope gradients_of_step(gradients_, sums.square_sums_U);
  for (size_t m = 0; m < micro_batches.size(); ++m) {
    gradients_.begin_micro_batch(m + 1 == micro_batches.size());
    const auto batch = upload_batch(context_, layout_, groups_, model_, frequencies_, micro_batches[m],
                                    sizes.micro_batches[m], sizes.num_targets);
    MicrobatchState state{batch, sums, sizes.num_tokens, offload_.store(model_.num_hidden_layers),
                          std::vector<model::LayerState>(model_.num_hidden_layers)};
    auto h = forward_layers(state, embed(batch), /*training=*/true);
    if (config_.balance_coeff > 0) {
      state.balance_dscores_LE = balance_score_gradient(context_, groups_, state.layers, model_.num_experts,
                                                        config_.balance_coeff, sizes.num_tokens);
    }
    const auto dh = head(state, h, /*training=*/true, {});
    h.reset();
    backward_layers(state, dh);
    begin_phase("embedding backward");
    ops::embedding_backward(context_, *groups_.vocab,
                            weights_.table_view(gradients_.take(weights_.embedding())), dh,
                            weights_.vocab_interval().begin, batch.embedding);
    gradients_.give_back(weights_.embedding());
  }
  finish_gradients();
  StepResult result;
  result.num_tokens = sizes.num_tokens;
  result.num_targets = sizes.num_targets;
  collect(sums, result);
  return result;
}

EvaluationResult Step::evaluate(std::span<const data::Microbatch> micro_batches, const TokenLossSink& sink) {
  const auto sizes = agree_on_sizes(layout_, groups_, model_.vocab_size, micro_batches);
  auto sums = make_accumulators();
  for (size_t m = 0; m < micro_batches.size(); ++m) {
    const auto batch = upload_batch(context_, layout_, groups_, model_, frequencies_, micro_batches[m],
                                    sizes.micro_batches[m], sizes.num_targets);
    MicrobatchState state{batch, sums, sizes.num_tokens, offload_.store(model_.num_hidden_layers),
                          std::vector<model::LayerState>(model_.num_hidden_layers)};
    const auto h = forward_layers(state, embed(batch), /*training=*/false);
    head(state, h, /*training=*/false, sink);
  }
  const double own = sums.loss_1.is_meta() ? 0.0 : sums.loss_1.item<double>();
  return {comm::all_reduce_sum(*groups_.control, own), sizes.num_targets};
}

void Step::begin_phase(std::string name) {
  memory::current_ledger().mark(std::move(name));
  on_phase_();
}

Step::Accumulators Step::make_accumulators() const {
  const memory::Scope scope(Category::kControl);
  Accumulators sums{context_.empty({1}, at::kDouble),
                    context_.empty({static_cast<int64_t>(weights_.units().size())}, at::kDouble),
                    context_.empty({model_.num_hidden_layers + 1}, at::kLong),
                    {},
                    {}};
  kernels::fill_zero(sums.loss_1);
  kernels::fill_zero(sums.square_sums_U);
  kernels::fill_zero(sums.nonfinite_layers);
  if (config_.balance_coeff > 0) kernels::fill_zero(sums.balance_1 = context_.empty({1}, at::kFloat));
  if (config_.router_z_coeff > 0) {
    kernels::fill_zero(sums.router_squares_1 = context_.empty({1}, at::kDouble));
  }
  return sums;
}

model::LayerWeights Step::layer_weights(int64_t layer, const at::Tensor& dense_flat) {
  model::LayerWeights weights{weights_.dense_views(layer, dense_flat), {}};
  if (!model_.is_dense_layer(layer)) weights.experts = weights_.expert_weights(layer);
  return weights;
}

model::LayerGradients Step::layer_gradients(int64_t layer, const at::Tensor& dense_flat) {
  model::LayerGradients grads{weights_.dense_views(layer, dense_flat), {}};
  if (!model_.is_dense_layer(layer)) {
    grads.experts = weights_.expert_gradients(layer, gradients_.take_as_stored(weights_.experts(layer)));
  }
  return grads;
}

model::LayerCall Step::call(int64_t layer, const MicrobatchState& state, const model::LayerWeights& weights) {
  const bool biased = config_.bias_update_rate > 0;
  const auto& dscores = state.balance_dscores_LE;
  return {layer_context_,
          state.batch.row,
          layer,
          weights,
          biased ? weights_.expert_biases()[layer] : at::Tensor{},
          {dscores.defined() ? dscores.select(0, layer) : at::Tensor{},
           config_.router_z_coeff / static_cast<double>(std::max<int64_t>(1, state.num_tokens)),
           state.sums.balance_1, state.sums.router_squares_1}};
}

at::Tensor Step::embed(const DeviceBatch& batch) {
  begin_phase("embedding forward");
  const memory::Scope scope(Category::kBoundary);
  const auto h = context_.empty({batch.num_tokens(), model_.hidden_size});
  ops::embedding_forward(context_, *groups_.vocab, h, weights_.table_view(weights_.embedding().working()),
                         weights_.vocab_interval().begin, batch.embedding);
  return h;
}

at::Tensor Step::forward_layers(MicrobatchState& state, at::Tensor h_nH, bool training) {
  const int64_t num_layers = model_.num_hidden_layers;
  const bool keep_all = training && config_.recompute == Recompute::kNone;
  model::GatheredUnit next(context_, weights_.dense(0));
  for (int64_t layer = 0; layer < num_layers; ++layer) {
    begin_phase(fmt::format("layer {} forward", layer));
    auto gathered = std::move(next);
    if (layer + 1 < num_layers) next = model::GatheredUnit(context_, weights_.dense(layer + 1));
    const auto weights = layer_weights(layer, gathered.wait());
    if (training) {
      const memory::Scope scope(Category::kBoundary);
      state.saved.save(layer, SavedName::kBoundary, h_nH, offload_.boundary_placement());
    }
    if (training && layer + 1 == num_layers) gradients_.prefetch(weights_.head());
    const auto output_category = layer + 1 < num_layers ? Category::kBoundary : Category::kResidual;
    auto& layer_state = state.layers[layer];
    layer_state.keep_attention_output = training && offload_.keeps_attention_output(layer);
    h_nH = model::layer_forward(call(layer, state, weights), h_nH, layer_state, keep_all, output_category);
    if (training) {
      save_attention_output(state, layer);
      state.saved.end_forward(layer);
      gradients_.release_left();  // those of the micro-batch before, behind the first layer
      kernels::add_nonfinite_count(state.sums.nonfinite_layers.narrow(0, layer, 1), h_nH);
      if (layer_state.routing) {
        auto& load = local_load_[layer];
        load.resize(model_.num_experts);
        const auto& counts = layer_state.routing->counts;
        for (int64_t e = 0; e < model_.num_experts; ++e) load[e] += counts.from_to(groups_.expert->rank(), e);
      }
    } else {
      layer_state = {};
    }
  }
  state.saved.end_forward();
  return h_nH;
}

void Step::save_attention_output(MicrobatchState& state, int64_t layer) {
  auto& output = state.layers[layer].attention_output;
  if (!output) return;
  const memory::Scope scope(Category::kSaved);
  const auto placement = offload_.output_placement(layer);
  state.saved.save(layer, SavedName::kAttentionOutput, std::move(output->out_Shd), placement);
  state.saved.save(layer, SavedName::kAttentionLogSumExp, std::move(output->lse_hS), placement);
  output.reset();
}

void Step::restore_attention_output(MicrobatchState& state, int64_t layer) {
  if (!offload_.keeps_attention_output(layer)) return;
  state.layers[layer].attention_output = {state.saved.restore(layer, SavedName::kAttentionOutput),
                                          state.saved.restore(layer, SavedName::kAttentionLogSumExp)};
}

// Of what goes backward next: a layer, or (below 0) the embedding.
void Step::prefetch_gradients(int64_t layer) {
  if (layer < 0) return gradients_.prefetch(weights_.embedding());
  gradients_.prefetch(weights_.dense(layer));
  if (!model_.is_dense_layer(layer)) gradients_.prefetch(weights_.experts(layer));
}

at::Tensor Step::head(MicrobatchState& state, const at::Tensor& h_nH, bool training,
                      const TokenLossSink& sink) {
  begin_phase("vocabulary loss");
  const memory::Scope scope(Category::kResidual);
  model::GatheredUnit gathered(context_, weights_.final_norm());
  const auto norm_weight = weights_.final_norm_view(gathered.wait());
  const int64_t n = h_nH.size(0);
  const auto x = context_.empty(h_nH.sizes()), inv_rms = context_.empty({n}, at::kFloat);
  kernels::rms_norm_forward(x, inv_rms, h_nH, norm_weight, model_.rms_norm_eps);
  at::Tensor row_loss, dx, grad_weight;
  if (sink) row_loss = context_.empty({n}, at::kFloat);
  if (training) {
    dx = context_.empty(h_nH.sizes());
    grad_weight = weights_.table_view(gradients_.take(weights_.head()));
  }
  ops::vocab_loss(
      config_.loss, context_, *groups_.vocab,
      {x, state.batch.targets_n, state.batch.row_weight_n, weights_.table_view(weights_.head().working()),
       model_.vocab_size, weights_.vocab_interval().begin, state.batch.rows_of_vocab_rank,
       state.batch.host_targets, state.batch.targets_of_vocab_rank},
      {state.sums.loss_1, row_loss, dx, grad_weight});
  if (sink) sink(state.batch.row.token_ids, row_loss);
  if (!training) return {};
  grad_weight.reset();
  gradients_.give_back(weights_.head(), /*is_last_visit=*/!model_.tie_word_embeddings);
  prefetch_gradients(model_.num_hidden_layers - 1);
  const int64_t head_slot = model_.num_hidden_layers;
  kernels::add_nonfinite_count(state.sums.nonfinite_layers.narrow(0, head_slot, 1), dx);
  GradientBuffer grads(context_, gradients_, weights_.final_norm(), *groups_.gradients);
  kernels::rms_norm_backward({.dx = dx,
                              .grad_weight = weights_.final_norm_view(grads.flat()),
                              .dy = dx,
                              .x = h_nH,
                              .weight = norm_weight,
                              .inv_rms = inv_rms});
  grads.start_reduce(context_);
  grads.finish();
  return dx;
}

void Step::backward_layers(MicrobatchState& state, const at::Tensor& dh_nH) {
  const int64_t num_layers = model_.num_hidden_layers;
  model::GatheredUnit next(context_, weights_.dense(num_layers - 1));
  state.saved.prefetch(num_layers - 1);
  GradientBuffer reducing;
  for (int64_t layer = num_layers - 1; layer >= 0; --layer) {
    begin_phase(fmt::format("layer {} backward", layer));
    auto gathered = std::move(next);
    if (layer > 0) next = model::GatheredUnit(context_, weights_.dense(layer - 1));
    const auto weights = layer_weights(layer, gathered.wait());
    GradientBuffer grads(context_, gradients_, weights_.dense(layer), *groups_.gradients);
    const auto h = state.saved.restore(layer, SavedName::kBoundary);
    restore_attention_output(state, layer);
    state.saved.prefetch(layer - 1);
    prefetch_gradients(layer - 1);
    model::layer_backward(call(layer, state, weights), layer_gradients(layer, grads.flat()), h, dh_nH,
                          state.layers[layer]);
    if (!model_.is_dense_layer(layer)) gradients_.give_back(weights_.experts(layer));
    // The previous layer's sum travelled while this one worked; it is released here, whether it was done or
    // not.
    reducing.finish();
    grads.start_reduce(context_);
    reducing = std::move(grads);
  }
  reducing.finish();
}

}  // namespace steppe::train
