// Dispatch of a whole micro-batch at once under a plan of one chunk. Contract: moe_dispatch.h.
#pragma once

#include "steppe/ops/moe_dispatch/moe_dispatch.h"

namespace steppe::ops {

void llep_forward(const OpContext& context, comm::Communicator& group, const DispatchPlan& plan,
                  const at::Tensor& y_NH, const at::Tensor& x_NH, const PinnedRouting& routing,
                  const ExpertWeights& weights, int64_t tile_rows, DispatchSaved* saved);
void llep_backward(const OpContext& context, comm::Communicator& group, const DispatchPlan& plan,
                   const DispatchGradients& grads, const at::Tensor& dy_NH, const at::Tensor& x_NH,
                   const PinnedRouting& routing, const ExpertWeights& weights, int64_t tile_rows,
                   DispatchSaved* saved);

}  // namespace steppe::ops
