// Dispatch of all routes at once: what `ep` and `llep` share.
#pragma once

#include "steppe/ops/moe_dispatch/helper_experts.h"
#include "steppe/ops/moe_dispatch/moe_dispatch.h"
#include "steppe/ops/moe_dispatch/route_schedule.h"

namespace steppe::ops {

// One layer's dispatch on this rank.
struct OneShot {
  const OpContext& context;
  comm::Communicator& group;
  const PinnedRouting& routing;
  const RouteSchedule& schedule;
  const ExpertWeights& weights;
  int64_t tile_rows = 0;
  HelperExperts* helpers = nullptr;  // nullptr: every route goes to its expert's own rank
};

void one_shot_forward(const OneShot& layer, const at::Tensor& y_NH, const at::Tensor& x_NH,
                      DispatchSaved* saved);
void one_shot_backward(const OneShot& layer, const DispatchGradients& grads, const at::Tensor& dy_NH,
                       const at::Tensor& x_NH, DispatchSaved* saved);

}  // namespace steppe::ops
