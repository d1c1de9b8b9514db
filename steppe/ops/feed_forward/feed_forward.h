// SwiGLU feed-forward over a rank's own tokens: dense layers and shared experts. y += (silu(x·W_gᵀ) ∘
// x·W_uᵀ)·W_dᵀ. x, y [N, H]; gate_up [2I, H]; down [H, I]; gradients fp32. No communication, no host sync.
//
// Works in tiles of T tokens, forward and backward, so that its interior is 3·T·I values and not 3·N·I: in
// category `ffn`, T·3I values (with `keep`, N·2I + T·I, of which N·2I stay between the passes); with bf16
// also the larger weight's gradient once.
//
// Deterministic. One tile (T ≥ N) and many give the same y and dx to the rounding of a product, which is free
// to sum rows by other blocks when there are others beside them; a weight's gradient is summed in fp32 tile
// by tile, so that it differs by the order of a sum.
#pragma once

#include "steppe/ops/context.h"

namespace steppe::ops {

struct FeedForwardWeights {
  at::Tensor gate_up_2IH, down_HI;
};

// What a tile's interior may take where nobody says how many tokens it has. At the widest dense layers of
// today still thousands of tokens: enough to keep a GPU's products at their full speed.
inline constexpr int64_t kFeedForwardTileBytes = int64_t{256} << 20;

// Tokens of a tile: `tile_tokens`, or (0) as many as kFeedForwardTileBytes holds; at least 1, at most N. What
// is left is dealt evenly, so that the last tile is no crumb.
int64_t feed_forward_tile(int64_t num_tokens, int64_t intermediate, int64_t itemsize, int64_t tile_tokens);

// `tile_tokens` as above.
void feed_forward_forward(const OpContext& context, const at::Tensor& y_NH, const at::Tensor& x_NH,
                          const FeedForwardWeights& weights, at::Tensor* keep_gate_up_N2I,
                          int64_t tile_tokens = 0);

// dx [N, H] += …; `kept_gate_up` undefined: gate and up are recomputed; defined: consumed.
struct FeedForwardBackward {
  at::Tensor dx_NH, dy_NH, x_NH;
  FeedForwardWeights weights;
  FeedForwardWeights grads;  // fp32, accumulated
  at::Tensor kept_gate_up_N2I;
  int64_t tile_tokens = 0;
};
void feed_forward_backward(const OpContext& context, const FeedForwardBackward& args);

}  // namespace steppe::ops
