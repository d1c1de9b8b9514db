#include "steppe/ops/moe_dispatch/one_shot.h"

#include "steppe/comm/collectives.h"
#include "steppe/kernels/permute.h"
#include "steppe/memory/scope.h"
#include "steppe/ops/moe_dispatch/route_order.h"

namespace steppe::ops {
namespace {

using memory::Category;

RouteOrder make_order(const OneShot& layer) {
  const auto& schedule = layer.schedule;
  RouteOrder order{layer.context.empty({schedule.num_sent}, at::kInt),
                   layer.context.empty({schedule.num_sent}, at::kInt)};
  RouteOrderScratch scratch;
  if (!schedule.to_destination_order.empty()) scratch = make_order_scratch(layer.context, schedule.num_sent);
  order_routes(order, scratch, schedule, layer.routing.ids_Nk);
  return order;
}

// One side of a layer's dispatch: rows in token order out to expert order, and back.
class Transport {
 public:
  explicit Transport(const OneShot& layer)
      : context_(layer.context), group_(layer.group), schedule_(layer.schedule) {}

  // values [num_sent, …] in slot order → [num_received, …] in expert order. Releases `sent` on the way.
  at::Tensor to_experts(at::Tensor sent) const {
    if (group_.size() == 1) return sent;
    auto received = empty_like_rows(sent, schedule_.num_received);
    comm::all_to_all_rows(group_, received, sent, schedule_.receive_rows, schedule_.send_rows).wait();
    sent.reset();
    return regrouped(std::move(received), schedule_.to_expert_order);
  }

  // The way back: [num_received, …] in expert order → [num_sent, …] in slot order.
  at::Tensor from_experts(at::Tensor rows) const {
    if (group_.size() == 1) return rows;
    const auto ordered = regrouped(std::move(rows), schedule_.to_source_order);
    auto returned = empty_like_rows(ordered, schedule_.num_sent);
    comm::all_to_all_rows(group_, returned, ordered, schedule_.send_rows, schedule_.receive_rows).wait();
    return returned;
  }

  at::Tensor rows_of_tokens(const at::Tensor& x_NH, const RouteOrder& order, int64_t k) const {
    const auto rows = context_.empty({schedule_.num_sent, x_NH.size(1)});
    kernels::gather_rows_of_routes(rows, x_NH, order.route_of_slot, k);
    return rows;
  }

  at::Tensor values_of_routes(const at::Tensor& values_Nk, const RouteOrder& order) const {
    const auto values = context_.empty({schedule_.num_sent}, at::kFloat);
    kernels::gather_values(values, values_Nk.view({-1}), order.route_of_slot);
    return values;
  }

 private:
  at::Tensor empty_like_rows(const at::Tensor& like, int64_t rows) const {
    auto sizes = like.sizes().vec();
    sizes[0] = rows;
    return context_.empty(sizes, like.scalar_type());
  }

  at::Tensor regrouped(at::Tensor rows, const std::vector<kernels::RowBlock>& blocks) const {
    const auto out = empty_like_rows(rows, rows.size(0));
    kernels::copy_row_blocks(out, rows, blocks);
    return out;
  }

  const OpContext& context_;
  comm::Communicator& group_;
  const RouteSchedule& schedule_;
};

}  // namespace

void one_shot_forward(const OneShot& layer, const at::Tensor& y_NH, const at::Tensor& x_NH,
                      DispatchSaved* saved) {
  const memory::Scope scope(Category::kDispatch);
  const auto& [context, group, routing, schedule, weights, tile_rows, helpers] = layer;
  const int64_t k = routing.ids_Nk.size(1);
  const auto order = make_order(layer);
  const Transport transport(layer);

  auto weight_R = transport.to_experts(transport.values_of_routes(routing.weights_Nk, order));
  auto x_RH = transport.to_experts(transport.rows_of_tokens(x_NH, order, k));
  auto y_RH = x_RH;
  if (saved != nullptr) {
    const memory::Scope kept(Category::kSaved);
    saved->gate_up_R2I = context.empty({schedule.num_received, weights.gate_up_E2IH.size(1)});
    saved->x_RH = x_RH, saved->weight_R = weight_R;
    saved->slot_of_route = order.slot_of_route, saved->route_of_slot = order.route_of_slot;
  }
  if (saved != nullptr) y_RH = context.empty({schedule.num_received, x_NH.size(1)});
  experts_forward(context, y_RH, {x_RH, weight_R, schedule.rows_of_expert},
                  {weights, helpers != nullptr ? helpers->wait() : ExpertWeights{}},
                  saved != nullptr ? saved->gate_up_R2I : at::Tensor{}, tile_rows);
  x_RH.reset(), weight_R.reset();
  const auto rows = transport.from_experts(std::move(y_RH));
  kernels::combine_rows(y_NH, rows, order.slot_of_route, k, /*add=*/true);
}

void one_shot_backward(const OneShot& layer, const DispatchGradients& grads, const at::Tensor& dy_NH,
                       const at::Tensor& x_NH, DispatchSaved* saved) {
  const memory::Scope scope(Category::kDispatch);
  const auto& [context, group, routing, schedule, weights, tile_rows, helpers] = layer;
  const int64_t k = routing.ids_Nk.size(1);
  const Transport transport(layer);
  DispatchSaved kept;
  if (saved != nullptr) std::swap(kept, *saved);
  const auto order =
      saved != nullptr ? RouteOrder{kept.slot_of_route, kept.route_of_slot} : make_order(layer);
  if (saved == nullptr) {
    kept.weight_R = transport.to_experts(transport.values_of_routes(routing.weights_Nk, order));
    kept.x_RH = transport.to_experts(transport.rows_of_tokens(x_NH, order, k));
  }
  auto dy_RH = transport.to_experts(transport.rows_of_tokens(dy_NH, order, k));
  auto dweight_R = context.empty({schedule.num_received}, at::kFloat);
  ExpertGradients helped_grads;
  if (helpers != nullptr) helped_grads = helpers->make_gradients();
  experts_backward(context,
                   {dy_RH,
                    dweight_R,
                    {kept.x_RH, kept.weight_R, schedule.rows_of_expert},
                    weights,
                    grads.experts,
                    kept.gate_up_R2I,
                    tile_rows},
                   helpers != nullptr ? helpers->wait() : ExpertWeights{}, helped_grads);
  kept.x_RH.reset(), kept.weight_R.reset(), kept.gate_up_R2I.reset();

  const auto dweights = transport.from_experts(std::move(dweight_R));
  kernels::gather_values(grads.dweights_Nk.view({-1}), dweights, order.slot_of_route);
  const auto dx_rows = transport.from_experts(std::move(dy_RH));
  kernels::combine_rows(grads.dx_NH, dx_rows, order.slot_of_route, k, /*add=*/false);
  if (helpers != nullptr) helpers->send_home(helped_grads, grads.experts);
}

}  // namespace steppe::ops
