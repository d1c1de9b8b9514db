// One decoder layer, forward and backward by hand:
//   h_mid = h + o(attention(rotary(norm(q)), …)),   out = h_mid + moe(norm(h_mid))   (or a dense
//   feed-forward)
// The forward keeps nothing but the pinned routing, unless asked to keep everything. The backward recomputes
// the layer up to the input of its experts, and lets the dispatch operator recompute those: the MoE forward
// never runs twice.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "steppe/comm/groups.h"
#include "steppe/memory/category.h"
#include "steppe/model/config.h"
#include "steppe/model/weights.h"
#include "steppe/ops/attention/ulysses_attention.h"
#include "steppe/ops/moe_dispatch/moe_dispatch.h"
#include "steppe/ops/router/router.h"

namespace steppe::model {

// What layers need to know of a micro-batch on this rank.
struct TokenRow {
  std::vector<int64_t> token_ids;        // [n] host
  std::vector<int64_t> tokens_of_rank;   // [D]
  int64_t largest_num_tokens = 0;        // over the expert group
  std::vector<int64_t> document_bounds;  // of the sequence group's whole row
  at::Tensor cos_nh, sin_nh;             // [n, head_dim/2] fp32
};

struct LayerContext {
  const ops::OpContext& ops;
  const ModelConfig& config;
  comm::Groups& groups;
  ops::RoutingSource& routing;
  ops::DispatchOptions dispatch;
  int64_t mlp_tile_tokens = 0;  // of dense and shared-expert feed-forwards; 0: as many as their bytes hold
  bool deterministic = true;    // attention's backward on CUDA
};

// What the attention half's backward reads.
struct AttentionSaved {
  at::Tensor x_nH, inv_rms_n;
  at::Tensor q_raw, k_raw, q_inv_rms, k_inv_rms;  // only with QK-norm; raw also with clip_qkv
  at::Tensor v_raw;                               // only with clip_qkv
  ops::UlyssesSaved ulysses;
  at::Tensor out_nh;
};

// What the feed-forward half's backward reads.
struct FeedForwardSaved {
  at::Tensor h_mid_nH, x_nH, inv_rms_n;
  ops::RouterScores router;
  at::Tensor gate_up;         // dense feed-forward
  at::Tensor shared_gate_up;  // shared expert
  std::optional<ops::DispatchSaved> dispatch;
};

// A layer's state in one micro-batch, from its forward to its backward.
struct LayerState {
  std::optional<ops::PinnedRouting> routing;
  // Set before the forward: it leaves attention's output here (category `saved`). A backward that finds it
  // here, the same values in any memory, does not run attention again.
  bool keep_attention_output = false;
  std::optional<kernels::AttentionOutput> attention_output;
  std::optional<AttentionSaved> attention;       // when everything is kept
  std::optional<FeedForwardSaved> feed_forward;  // when everything is kept
};

struct LayerWeights {
  DenseViews dense;
  ops::ExpertWeights experts;
};
struct LayerGradients {  // accumulated: fp32, those of experts as they are stored
  DenseViews dense;
  ops::ExpertGradients experts;
};

struct LayerCall {
  const LayerContext& context;
  const TokenRow& row;
  int64_t layer;
  const LayerWeights& weights;
  at::Tensor expert_bias_E;           // may be undefined
  ops::RouterLosses router_losses{};  // of the backward, except that `z_coeff` is known in the forward too
};

// Returns the layer's output [n, H], allocated in `output_category`. `keep_all`: keep what the backward
// reads.
at::Tensor layer_forward(const LayerCall& call, const at::Tensor& h_nH, LayerState& state, bool keep_all,
                         memory::Category output_category);

// dh [n, H]: the gradient of the output on entry, of the input h on return. Consumes `state`.
void layer_backward(const LayerCall& call, const LayerGradients& grads, const at::Tensor& h_nH,
                    const at::Tensor& dh_nH, LayerState& state);

// The halves, for the layer and for tests.
at::Tensor attention_forward(const LayerCall& call, const at::Tensor& h_nH, AttentionSaved& saved);
void attention_backward(const LayerCall& call, const LayerGradients& grads, const at::Tensor& h_nH,
                        const at::Tensor& dh_nH, AttentionSaved& saved);

}  // namespace steppe::model
