#include "steppe/ops/moe_dispatch/moe_dispatch.h"

#include <algorithm>

#include "steppe/base/error.h"
#include "steppe/ops/moe_dispatch/chunks_in_turn.h"
#include "steppe/ops/moe_dispatch/llep.h"
#include "steppe/ops/moe_dispatch/pipelined.h"

namespace steppe::ops {
namespace {

// llep plans the micro-batch, never a part of it.
DispatchPlanOptions plan_options(const DispatchOptions& options) {
  auto plan = options.plan;
  if (options.kind == DispatchKind::kLlep) plan.replan_threshold = 0;
  return plan;
}

DispatchPlan plan_of(comm::Communicator& group, const PinnedRouting& routing,
                     const DispatchOptions& options) {
  return plan_dispatch(routing.counts, group.size(), routing.ids_Nk.size(1), plan_options(options));
}

}  // namespace

RouteCounts exchange_route_counts(comm::Communicator& expert_group, std::span<const int64_t> counts_KE,
                                  const ChunkSplit& split) {
  return {static_cast<int64_t>(counts_KE.size()) / split.num_chunks, expert_group.all_gather_host(counts_KE),
          split};
}

int64_t tile_rows(const DispatchOptions& options, const ExpertWeights& weights) {
  if (options.tile_rows > 0 || options.tile_bytes == 0) return options.tile_rows;
  const int64_t row = 3 * weights.down_EHI.size(2) * weights.down_EHI.element_size();
  return std::max<int64_t>(1, options.tile_bytes / row);
}

ChunkSplit split_tokens(const DispatchOptions& options, int64_t largest_num_tokens) {
  if (options.kind != DispatchKind::kPipelinedLlep) return {};
  return {number_of_chunks(largest_num_tokens, options.token_budget, options.max_chunks), options.membership};
}

void dispatch_forward(const OpContext& context, comm::Communicator& group, const at::Tensor& y_NH,
                      const at::Tensor& x_NH, const PinnedRouting& routing, const ExpertWeights& weights,
                      const DispatchOptions& options, DispatchSaved* saved) {
  if (options.kind == DispatchKind::kEp)
    return ep_forward(context, group, y_NH, x_NH, routing, weights, options, saved);
  const auto plan = plan_of(group, routing, options);
  const int64_t rows = tile_rows(options, weights);
  if (plan.num_chunks() == 1)
    return llep_forward(context, group, plan, y_NH, x_NH, routing, weights, rows, saved);
  if (group.size() == 1) return in_turn_forward(context, plan, y_NH, x_NH, routing, weights, rows, saved);
  pipelined_forward(context, group, plan, y_NH, x_NH, routing, weights, rows, saved);
}

void dispatch_backward(const OpContext& context, comm::Communicator& group, const DispatchGradients& grads,
                       const at::Tensor& dy_NH, const at::Tensor& x_NH, const PinnedRouting& routing,
                       const ExpertWeights& weights, const DispatchOptions& options, DispatchSaved* saved) {
  if (options.kind == DispatchKind::kEp)
    return ep_backward(context, group, grads, dy_NH, x_NH, routing, weights, options, saved);
  const auto plan = plan_of(group, routing, options);
  const int64_t rows = tile_rows(options, weights);
  if (plan.num_chunks() == 1)
    return llep_backward(context, group, plan, grads, dy_NH, x_NH, routing, weights, rows, saved);
  if (group.size() == 1)
    return in_turn_backward(context, plan, grads, dy_NH, x_NH, routing, weights, rows, saved);
  pipelined_backward(context, group, plan, grads, dy_NH, x_NH, routing, weights, rows, saved);
}

}  // namespace steppe::ops
