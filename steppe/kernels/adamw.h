// AdamW with decoupled decay (Loshchilov and Hutter 2019) as one written sequence of fp32 operations, the
// same bits on a CPU and a GPU, for any split of the range and any number of threads:
//   g = grad·grad_scale; m = fma(β1, m, (1−β1)·g); v = fma(β2, v, ((1−β2)·g)·g); d = √v·rsqrt_bias2 + eps;
//   w = fma(−lr·wd, w, w); w = fma(−step_size, m/d, w)
// IEEE square root and division; coefficients are computed in fp64 on the host and rounded to fp32 once.
// Moments in bf16 are widened before and rounded to nearest even after; this update uses the unrounded ones.
// Vectorized and threaded on the CPU at memory bandwidth.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace steppe::kernels {

struct AdamWStep {
  double lr = 0, beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0;
  double grad_scale = 1;  // clipping
  int64_t step = 1;       // 1 for the first update
};

// Operations of the sequence for one parameter.
inline constexpr int64_t kAdamWFlops = 16;

// master [n] fp32 and m, v [n] of one dtype, fp32 or bf16, updated in place; grad [n] fp32 or bf16; working
// [n] bf16 or fp32, refreshed from master (undefined, or master itself: not written). All contiguous, of any
// one shape. Returns at once on `meta` (after the checks); allocates nothing. ValueError: shapes, dtypes,
// devices or layouts that do not fit; step < 1, a β outside [0, 1), eps < 0.
struct AdamWTensors {
  at::Tensor master, m, v, grad, working;
};
void adamw(const AdamWTensors& tensors, const AdamWStep& step);

}  // namespace steppe::kernels
