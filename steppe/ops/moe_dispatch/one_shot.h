// Dispatch of a whole micro-batch at once under a plan of one chunk: `ep`, `llep`, and pipelined_llep where
// it does not cut. Contract: moe_dispatch.h.
#pragma once

#include "steppe/ops/moe_dispatch/moe_dispatch.h"

namespace steppe::ops {

void one_shot_forward(const DispatchLayer& layer, const DispatchPlan& plan, const at::Tensor& y_NH,
                      const at::Tensor& x_NH, DispatchSaved* saved);
void one_shot_backward(const DispatchLayer& layer, const DispatchPlan& plan, const DispatchGradients& grads,
                       const at::Tensor& dy_NH, const at::Tensor& x_NH, DispatchSaved* saved);

}  // namespace steppe::ops
