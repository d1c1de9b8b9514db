#include "steppe/ops/moe_dispatch/llep.h"

#include "steppe/ops/moe_dispatch/one_shot.h"

namespace steppe::ops {

void llep_forward(const OpContext& context, comm::Communicator& group, const DispatchPlan& plan,
                  const at::Tensor& y_NH, const at::Tensor& x_NH, const PinnedRouting& routing,
                  const ExpertWeights& weights, int64_t tile_rows, DispatchSaved* saved) {
  const auto schedule = schedule_routes(routing.counts, plan, /*chunk=*/0, group.rank());
  HelperExperts helpers(context, group, plan, weights);
  one_shot_forward({context, group, routing, schedule, weights, tile_rows, &helpers}, y_NH, x_NH, saved);
}

void llep_backward(const OpContext& context, comm::Communicator& group, const DispatchPlan& plan,
                   const DispatchGradients& grads, const at::Tensor& dy_NH, const at::Tensor& x_NH,
                   const PinnedRouting& routing, const ExpertWeights& weights, int64_t tile_rows,
                   DispatchSaved* saved) {
  const auto schedule = schedule_routes(routing.counts, plan, /*chunk=*/0, group.rank());
  HelperExperts helpers(context, group, plan, weights);
  one_shot_backward({context, group, routing, schedule, weights, tile_rows, &helpers}, grads, dy_NH, x_NH,
                    saved);
}

}  // namespace steppe::ops
