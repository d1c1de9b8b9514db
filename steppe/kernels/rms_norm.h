// Root-mean-square normalization of rows: y = x · inv_rms · weight, inv_rms = 1/√(mean(x²) + eps), in fp32
// inside. x, y, dx, dy [R, H] (rows may have a stride, the last dim is contiguous), weight [H], all fp32 or
// all bf16; inv_rms [R] fp32. H is at most 16384. Fill given tensors, return at once on `meta` (after the
// checks), allocate nothing. Fixed summation order: the same bits for any number of threads. ValueError:
// shapes, dtypes, devices or layouts that do not fit. Source: Zhang and Sennrich 2019.
#pragma once

#include <ATen/core/Tensor.h>

namespace steppe::kernels {

// y may be x.
void rms_norm_forward(const at::Tensor& y, const at::Tensor& inv_rms, const at::Tensor& x,
                      const at::Tensor& weight, double eps);

// dx = ∂/∂x, or dx += when add_to_dx; grad_weight [H] fp32 (undefined: not wanted) += Σ_rows dy·x·inv_rms.
// dx may be dy unless add_to_dx.
struct RmsNormBackward {
  at::Tensor dx, grad_weight;
  at::Tensor dy, x, weight, inv_rms;
  bool add_to_dx = false;
};
void rms_norm_backward(const RmsNormBackward& args);

}  // namespace steppe::kernels
