// SwiGLU feed-forward over a rank's own tokens: dense layers and shared experts. y += (silu(x·W_gᵀ) ∘
// x·W_uᵀ)·W_dᵀ. x, y [N, H]; gate_up [2I, H]; down [H, I]; gradients fp32. No communication, no host sync.
// Deterministic. Allocates N·3I values in category `ffn` (2I of them kept between the passes on request);
// with bf16 also the larger weight's gradient once.
#pragma once

#include "steppe/ops/context.h"

namespace steppe::ops {

struct FeedForwardWeights {
  at::Tensor gate_up_2IH, down_HI;
};

void feed_forward_forward(const OpContext& context, const at::Tensor& y_NH, const at::Tensor& x_NH,
                          const FeedForwardWeights& weights, at::Tensor* keep_gate_up_N2I);

// dx [N, H] += …; `kept_gate_up` undefined: gate and up are recomputed; defined: consumed.
struct FeedForwardBackward {
  at::Tensor dx_NH, dy_NH, x_NH;
  FeedForwardWeights weights;
  FeedForwardWeights grads;  // fp32, accumulated
  at::Tensor kept_gate_up_N2I;
};
void feed_forward_backward(const OpContext& context, const FeedForwardBackward& args);

}  // namespace steppe::ops
