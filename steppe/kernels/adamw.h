// AdamW with decoupled decay (Loshchilov and Hutter 2019) as one written sequence of fp32 operations, the same bits
// on a CPU and a GPU: g = grad·grad_scale; m = fma(β1, m, (1−β1)·g); v = fma(β2, v, ((1−β2)·g)·g);
// d = √v·rsqrt_bias2 + eps; w = fma(−lr·wd, w, w) first, then w = fma(−step_size, m/d, w). IEEE square root and
// division; bias corrections in fp64 on the host. Vectorized and threaded on the CPU at memory bandwidth.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace steppe::kernels {

struct AdamWStep {
  double lr = 0, beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0;
  double grad_scale = 1;  // clipping
  int64_t step = 1;       // 1 for the first update
};

// master, m, v [n] fp32, updated in place; grad [n] fp32 or bf16; working [n] bf16 or fp32, refreshed from master
// (undefined, or master itself: not written). Returns at once on `meta`; allocates nothing.
struct AdamWTensors {
  at::Tensor master, m, v, grad, working;
};
void adamw(const AdamWTensors& tensors, const AdamWStep& step);

}  // namespace steppe::kernels
