// SwiGLU experts on whatever rows arrive, grouped by expert; every size comes from the host.
//   a = silu(x·W_gᵀ + b_g) ∘ (x·W_uᵀ + b_u) · w,   y = a·W_dᵀ + w·b_d
// or with the clamped form of gpt-oss in place of silu and product (kernels/swiglu_form.h). The routing
// weight w multiplies the activation before the down projection, so that its gradient needs neither the
// output nor a second down projection: dw = ⟨a/w, dy·W_d⟩ + ⟨b_d, dy⟩.
//
// Rows [R, H] are ordered by expert; rows_of_expert (host, one entry per local expert) says how many each
// has; zero is ordinary. gate_up [E_l, 2I, H], down [E_l, H, I], biases [E_l, 2I] and [E_l, H] or undefined;
// gradients of the same shapes, accumulated, fp32 or (of matrices) of the working dtype. Work happens in
// tiles of whole experts or parts of one: a tile has at most tile_rows rows (0: all rows are one tile).
// Allocates one tile of [·, 2I] and one of [·, I] values in category `expert`, and where a device multiplies
// groups at once (kernels/grouped_matmul.h) 4 bytes an expert; with bf16 and fp32 gradients also one
// expert's. Floating-point work in units of one R×H×I product: forward 3, backward 2 (gate and up again,
// unless kept) + 6. Deterministic. No host sync, no communication. Products of a tile are made at once there;
// elsewhere the experts take turns.
#pragma once

#include <cstdint>
#include <span>

#include "steppe/kernels/swiglu_form.h"
#include "steppe/ops/context.h"

namespace steppe::ops {

struct ExpertWeights {
  at::Tensor gate_up_E2IH, down_EHI;
  at::Tensor gate_up_bias_E2I{}, down_bias_EH{};  // undefined: none
  kernels::SwigluForm form{};
};

struct ExpertGradients {  // accumulated; of biases always fp32
  at::Tensor gate_up_E2IH, down_EHI;
  at::Tensor gate_up_bias_E2I{}, down_bias_EH{};
};

// Room for one tile of at least as many rows as the call's largest.
struct ExpertWorkspace {
  at::Tensor gate_up_T2I, act_TI;
};

struct ExpertRows {
  at::Tensor x_RH;
  at::Tensor weight_R;  // routing weights, fp32
  std::span<const int64_t> rows_of_expert;
  ExpertWorkspace workspace{};  // undefined: allocated by the call
  bool at_once = false;         // as where groups are multiplied at once, on any device
};

// y [R, H] may be x: a tile's output is written over its input. `keep_gate_up` [R, 2I] (or undefined)
// receives gate and up for a backward that need not recompute them; it needs x all the same.
void expert_mlp_forward(const OpContext& context, const at::Tensor& y_RH, const ExpertRows& rows,
                        const ExpertWeights& weights, const at::Tensor& keep_gate_up_R2I, int64_t tile_rows);

// dx [R, H] is written over dy. dweight [R] fp32. `kept` is consumed if defined.
struct ExpertBackward {
  at::Tensor dy_RH, dweight_R;
  ExpertRows rows;
  ExpertWeights weights;
  ExpertGradients grads;
  at::Tensor kept_gate_up_R2I;
  int64_t tile_rows = 0;
};
void expert_mlp_backward(const OpContext& context, const ExpertBackward& args);

}  // namespace steppe::ops
