#include "steppe/ops/moe_dispatch/ep_plan.h"
#include "steppe/ops/moe_dispatch/moe_dispatch.h"
#include "steppe/ops/moe_dispatch/one_shot.h"

namespace steppe::ops {

void ep_forward(const OpContext& context, comm::Communicator& group, const at::Tensor& y_NH,
                const at::Tensor& x_NH, const PinnedRouting& routing, const ExpertWeights& weights,
                const DispatchOptions& options, DispatchSaved* saved) {
  const auto schedule = plan_ep(routing.counts, group.rank(), group.size());
  one_shot_forward({context, group, routing, schedule, weights, tile_rows(options, weights)}, y_NH, x_NH,
                   saved);
}

void ep_backward(const OpContext& context, comm::Communicator& group, const DispatchGradients& grads,
                 const at::Tensor& dy_NH, const at::Tensor& x_NH, const PinnedRouting& routing,
                 const ExpertWeights& weights, const DispatchOptions& options, DispatchSaved* saved) {
  const auto schedule = plan_ep(routing.counts, group.rank(), group.size());
  one_shot_backward({context, group, routing, schedule, weights, tile_rows(options, weights)}, grads, dy_NH,
                    x_NH, saved);
}

}  // namespace steppe::ops
