// Gated activation of rows: a = silu(gate)·up [· row_weight], or the clamped form of gpt-oss. gate_up [R, 2I]
// holds gate then up. All fp32 or all bf16, computed in fp32; rows may have a stride, the last dim is
// contiguous. Fill given tensors, return at once on `meta` (after the checks), allocate nothing. The same
// bits for any number of threads. ValueError: shapes, dtypes, devices or layouts that do not fit.
#pragma once

#include <ATen/core/Tensor.h>

#include "steppe/kernels/swiglu_form.h"

namespace steppe::kernels {

// bias [2I], contiguous, of gate_up's dtype, or undefined: added to gate_up before the activation.
struct SwigluOptions {
  SwigluForm form{};
  at::Tensor bias_2I{};
};

// a [R, I]; row_weight [R] fp32 or undefined (1).
void swiglu_forward(const at::Tensor& a_RI, const at::Tensor& gate_up_R2I, const at::Tensor& row_weight_R,
                    const SwigluOptions& options = {});

// Given da = dy·W_downᵀ [R, I]: writes d(gate, up) over gate_up, and the weighted activation a over da (the
// operand of the down projection's weight gradient). grad_row_weight [R] fp32 (or undefined) = Σ_I da·a/w,
// computed from the unweighted activation, so w = 0 is exact. A clamped value passes no gradient beyond its
// limit. The bias's gradient is the sum of d(gate, up) over the rows: row_bias.h.
void swiglu_backward_inplace(const at::Tensor& gate_up_R2I, const at::Tensor& da_RI,
                             const at::Tensor& row_weight_R, const at::Tensor& grad_row_weight_R,
                             const SwigluOptions& options = {});

}  // namespace steppe::kernels
