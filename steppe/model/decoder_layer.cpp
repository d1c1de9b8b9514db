#include "steppe/model/decoder_layer.h"

#include <utility>

#include "steppe/base/error.h"
#include "steppe/kernels/pointwise.h"
#include "steppe/kernels/rms_norm.h"
#include "steppe/memory/scope.h"

namespace steppe::model {
namespace {

using memory::Category;

ops::RouterConfig router_config(const ModelConfig& c) {
  return {c.num_experts, c.num_experts_per_tok, c.norm_topk_prob};
}

// The decision of the first forward: ids, weights and everyone's counts.
ops::PinnedRouting route(const LayerCall& call, const at::Tensor& scores_nE) {
  const memory::Scope scope(Category::kRouting);
  const auto& ops = call.context.ops;
  const auto config = router_config(call.context.config);
  ops::PinnedRouting routing;
  routing.ids_Nk = ops.empty({scores_nE.size(0), config.top_k}, at::kInt);
  const auto split = ops::split_tokens(call.context.dispatch, call.row.largest_num_tokens);
  const auto counts = ops.empty({split.num_chunks * config.num_experts}, at::kLong);
  const auto local = call.context.routing.choose({call.layer, call.row.token_ids, split}, routing.ids_Nk,
                                                 scores_nE, call.expert_bias_E, counts);
  routing.counts = ops::exchange_route_counts(*call.context.groups.expert, local, split);
  routing.weights_Nk = ops::router_weights(ops, config, scores_nE, routing.ids_Nk);
  return routing;
}

ops::DispatchLayer dispatch_layer(const LayerCall& call, const ops::PinnedRouting& routing) {
  const auto& context = call.context;
  return {context.ops, *context.groups.expert, routing, call.weights.experts, context.dispatch};
}

void normalize_mid(const LayerCall& call, FeedForwardSaved& saved) {
  const memory::Scope scope(Category::kResidual);
  const auto& ops = call.context.ops;
  saved.x_nH = ops.empty(saved.h_mid_nH.sizes());
  saved.inv_rms_n = ops.empty({saved.h_mid_nH.size(0)}, at::kFloat);
  kernels::rms_norm_forward(saved.x_nH, saved.inv_rms_n, saved.h_mid_nH, call.weights.dense.post_norm_H,
                            call.context.config.rms_norm_eps);
}

bool is_dense(const LayerCall& call) {
  return call.context.config.is_dense_layer(call.layer);
}

// for_backward: with what only the backward reads.
ops::RouterScores router_scores(const LayerCall& call, const at::Tensor& x_nH, bool for_backward) {
  return ops::router_scores(call.context.ops, x_nH, call.weights.dense.router_EH,
                            for_backward && call.router_losses.z_coeff != 0);
}

// out += feed-forward or experts of the normalized h_mid.
void add_feed_forward(const LayerCall& call, const at::Tensor& out_nH, LayerState& state,
                      FeedForwardSaved& saved, bool keep_all) {
  const auto& ops = call.context.ops;
  const auto& w = call.weights;
  if (is_dense(call)) {
    ops::feed_forward_forward(ops, out_nH, saved.x_nH, w.dense.feed_forward,
                              keep_all ? &saved.gate_up : nullptr, call.context.mlp_tile_tokens);
    return;
  }
  saved.router = router_scores(call, saved.x_nH, keep_all);
  state.routing = route(call, saved.router.scores_NE);
  if (!keep_all) saved.router = {};
  if (w.dense.shared_expert.down_HI.defined()) {
    ops::feed_forward_forward(ops, out_nH, saved.x_nH, w.dense.shared_expert,
                              keep_all ? &saved.shared_gate_up : nullptr, call.context.mlp_tile_tokens);
  }
  ops::dispatch_forward(dispatch_layer(call, *state.routing), out_nH, saved.x_nH,
                        keep_all ? &saved.dispatch.emplace() : nullptr);
}

void feed_forward_half_backward(const LayerCall& call, const LayerGradients& grads, const at::Tensor& dh_nH,
                                LayerState& state, FeedForwardSaved& saved) {
  const auto& ops = call.context.ops;
  const auto& w = call.weights;
  const auto& g = grads.dense;
  at::Tensor dx;
  if (is_dense(call)) {
    const memory::Scope scope(Category::kResidual);
    dx = ops.empty(dh_nH.sizes());
    kernels::fill_zero(dx);
    ops::feed_forward_backward(ops, {dx, dh_nH, saved.x_nH, w.dense.feed_forward, g.feed_forward,
                                     saved.gate_up, call.context.mlp_tile_tokens});
  } else {
    const memory::Scope scope(Category::kRouting);
    const auto config = router_config(call.context.config);
    const auto dweights = ops.empty(state.routing->weights_Nk.sizes(), at::kFloat);
    // While rows travel dx has x's place; what comes after is small beside them, and x is a norm away.
    dx = saved.x_nH;
    ops::dispatch_backward(dispatch_layer(call, *state.routing), {dx, dweights, grads.experts}, dh_nH,
                           saved.x_nH, saved.dispatch ? &*saved.dispatch : nullptr);
    normalize_mid(call, saved);
    if (w.dense.shared_expert.down_HI.defined()) {
      ops::feed_forward_backward(ops, {dx, dh_nH, saved.x_nH, w.dense.shared_expert, g.shared_expert,
                                       saved.shared_gate_up, call.context.mlp_tile_tokens});
    }
    ops::router_backward(ops, config,
                         {dx, g.router_EH, dweights, state.routing->weights_Nk, saved.router,
                          state.routing->ids_Nk, saved.x_nH, w.dense.router_EH, call.router_losses});
  }
  saved.x_nH.reset(), saved.router = {};
  kernels::rms_norm_backward({.dx = dh_nH,
                              .grad_weight = g.post_norm_H,
                              .dy = dx,
                              .x = saved.h_mid_nH,
                              .weight = w.dense.post_norm_H,
                              .inv_rms = saved.inv_rms_n,
                              .add_to_dx = true});
  saved = {};
  state.routing.reset();
}

}  // namespace

at::Tensor layer_forward(const LayerCall& call, const at::Tensor& h_nH, LayerState& state, bool keep_all,
                         Category output_category) {
  const auto& ops = call.context.ops;
  AttentionSaved attention;
  FeedForwardSaved feed_forward;
  attention.ulysses.output_outlives_layer = state.keep_attention_output && !keep_all;
  feed_forward.h_mid_nH = attention_forward(call, h_nH, attention);
  if (attention.ulysses.output_outlives_layer) state.attention_output = attention.ulysses.output;
  if (!keep_all) attention = {};
  normalize_mid(call, feed_forward);
  at::Tensor out;
  {
    const memory::Scope scope(output_category);
    out = ops.empty(h_nH.sizes());
  }
  kernels::copy_cast(out, feed_forward.h_mid_nH);
  if (!keep_all) feed_forward.h_mid_nH.reset();
  add_feed_forward(call, out, state, feed_forward, keep_all);
  if (keep_all) {
    state.attention = std::move(attention);
    state.feed_forward = std::move(feed_forward);
  }
  return out;
}

void layer_backward(const LayerCall& call, const LayerGradients& grads, const at::Tensor& h_nH,
                    const at::Tensor& dh_nH, LayerState& state) {
  AttentionSaved attention;
  FeedForwardSaved feed_forward;
  if (state.attention) {
    attention = std::move(*state.attention);
    feed_forward = std::move(*state.feed_forward);
    state.attention.reset(), state.feed_forward.reset();
  } else {
    if (state.attention_output) attention.ulysses.output = *std::exchange(state.attention_output, {});
    feed_forward.h_mid_nH = attention_forward(call, h_nH, attention);
    normalize_mid(call, feed_forward);
    if (!is_dense(call)) {
      feed_forward.router = router_scores(call, feed_forward.x_nH, /*for_backward=*/true);
    }
  }
  feed_forward_half_backward(call, grads, dh_nH, state, feed_forward);
  attention_backward(call, grads, h_nH, dh_nH, attention);
}

}  // namespace steppe::model
