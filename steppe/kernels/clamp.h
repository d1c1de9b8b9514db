// Values held within ±limit (OLMoE's clip_qkv), and the gradient through it. Functions fill given tensors,
// return at once on `meta` (after the checks), allocate nothing. Tensors are fp32 or bf16, of one dtype and
// shape, contiguous. NaN stays NaN. ValueError: shapes, dtypes, devices or layouts that do not fit, or a
// limit that is not above 0.
#pragma once

#include <ATen/core/Tensor.h>

namespace steppe::kernels {

// out = min(max(x, −limit), limit); out may be x. The limit is rounded to the tensors' dtype.
void clamp_forward(const at::Tensor& out, const at::Tensor& x, double limit);

// dx = 0 where |x| > limit, in place; x is what was clamped.
void clamp_backward(const at::Tensor& dx, const at::Tensor& x, double limit);

}  // namespace steppe::kernels
