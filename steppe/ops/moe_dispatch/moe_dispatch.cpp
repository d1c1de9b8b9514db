#include "steppe/ops/moe_dispatch/moe_dispatch.h"

#include <algorithm>

#include "steppe/ops/moe_dispatch/chunks_in_turn.h"
#include "steppe/ops/moe_dispatch/one_shot.h"
#include "steppe/ops/moe_dispatch/pipelined.h"

namespace steppe::ops {
namespace {

DispatchPlan plan_of(const DispatchLayer& layer) {
  return plan_dispatch(layer.routing.counts, layer.expert_group.size(), layer.routing.ids_Nk.size(1),
                       plan_options(layer.options));
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

DispatchPlanOptions plan_options(const DispatchOptions& options) {
  auto plan = options.plan;
  if (options.kind == DispatchKind::kEp) plan.least_loaded.max_helpers = 0;
  if (options.kind != DispatchKind::kPipelinedLlep) plan.replan_threshold = 0;
  return plan;
}

void dispatch_forward(const DispatchLayer& layer, const at::Tensor& y_NH, const at::Tensor& x_NH,
                      DispatchSaved* saved) {
  const auto plan = plan_of(layer);
  if (plan.num_chunks() == 1) return one_shot_forward(layer, plan, y_NH, x_NH, saved);
  if (plan.degree == 1) return in_turn_forward(layer, plan, y_NH, x_NH, saved);
  pipelined_forward(layer, plan, y_NH, x_NH, saved);
}

void dispatch_backward(const DispatchLayer& layer, const DispatchGradients& grads, const at::Tensor& dy_NH,
                       const at::Tensor& x_NH, DispatchSaved* saved) {
  const auto plan = plan_of(layer);
  if (plan.num_chunks() == 1) return one_shot_backward(layer, plan, grads, dy_NH, x_NH, saved);
  if (plan.degree == 1) return in_turn_backward(layer, plan, grads, dy_NH, x_NH, saved);
  pipelined_backward(layer, plan, grads, dy_NH, x_NH, saved);
}

}  // namespace steppe::ops
