#include "steppe/ops/moe_dispatch/one_shot.h"

#include <numeric>

#include "steppe/comm/collectives.h"
#include "steppe/kernels/permute.h"
#include "steppe/memory/scope.h"
#include "steppe/ops/moe_dispatch/helper_experts.h"
#include "steppe/ops/moe_dispatch/packed_rows.h"
#include "steppe/ops/moe_dispatch/route_order.h"
#include "steppe/ops/moe_dispatch/route_schedule.h"

namespace steppe::ops {
namespace {

using memory::Category;

// Room for the order is booked to the scope in force, what only serves to find it to `dispatch`.
RouteOrder make_order(const DispatchLayer& layer, const RouteSchedule& schedule) {
  RouteOrder order{layer.context.empty({schedule.num_sent}, at::kInt),
                   layer.context.empty({schedule.num_sent}, at::kInt)};
  const memory::Scope scope(Category::kDispatch);
  RouteOrderScratch scratch;
  if (!schedule.to_destination_order.empty()) scratch = make_order_scratch(layer.context, schedule.num_sent);
  order_routes(order, scratch, schedule, layer.routing.ids_Nk);
  return order;
}

// Rows at their experts, in expert order, with their routing weights.
struct RowsAtExperts {
  at::Tensor x_RH, weight_R;
};

// One side of a layer's dispatch: rows in token order out to expert order, and back. What it returns is
// booked to `kept`.
class Transport {
 public:
  Transport(const DispatchLayer& layer, const RouteSchedule& schedule, Category kept)
      : context_(layer.context),
        group_(layer.expert_group),
        routing_(layer.routing),
        schedule_(schedule),
        packed_(layer.weights.down_EHI.size(1), layer.context.dtype),
        kept_(kept) {}

  RowsAtExperts out_with_weights(const at::Tensor& x_NH, const RouteOrder& order) const {
    const auto weights = routing_.weights_Nk.view({-1});
    if (group_.size() == 1) {
      const memory::Scope scope(kept_);
      const RowsAtExperts rows{gathered(x_NH, order), context_.empty({schedule_.num_sent}, at::kFloat)};
      kernels::gather_values(rows.weight_R, weights, order.route_of_slot);
      return rows;
    }
    auto sent = context_.empty({schedule_.num_sent, packed_.width()});
    gather(packed_.values(sent), x_NH, order);
    kernels::gather_values(packed_.weights(sent), weights, order.route_of_slot);
    const auto received = exchanged(std::move(sent), schedule_.send_rows, schedule_.receive_rows);
    const memory::Scope scope(kept_);
    const RowsAtExperts rows{context_.empty({schedule_.num_received, packed_.hidden}),
                             context_.empty({schedule_.num_received}, at::kFloat)};
    kernels::copy_row_blocks(rows.x_RH, packed_.values(received), schedule_.to_expert_order);
    kernels::copy_row_blocks(rows.weight_R, packed_.weights(received), schedule_.to_expert_order);
    return rows;
  }

  at::Tensor out(const at::Tensor& dy_NH, const RouteOrder& order) const {
    auto sent = gathered(dy_NH, order);
    if (group_.size() == 1) return sent;
    const auto received = exchanged(std::move(sent), schedule_.send_rows, schedule_.receive_rows);
    const auto dy_RH = context_.empty(received.sizes(), received.scalar_type());
    kernels::copy_row_blocks(dy_RH, received, schedule_.to_expert_order);
    return dy_RH;
  }

  // [num_received, H] in expert order → [num_sent, H] in slot order.
  at::Tensor back(at::Tensor rows) const {
    if (group_.size() == 1) return rows;
    auto ordered = context_.empty(rows.sizes(), rows.scalar_type());
    kernels::copy_row_blocks(ordered, rows, schedule_.to_source_order);
    rows.reset();
    return exchanged(std::move(ordered), schedule_.receive_rows, schedule_.send_rows);
  }

  // The same with what each row's weight gets: views of one buffer.
  RowsAtExperts back_with_weights(RowsAtExperts rows) const {
    if (group_.size() == 1) return rows;
    auto ordered = context_.empty({schedule_.num_received, packed_.width()});
    kernels::copy_row_blocks(packed_.values(ordered), rows.x_RH, schedule_.to_source_order);
    kernels::copy_row_blocks(packed_.weights(ordered), rows.weight_R, schedule_.to_source_order);
    rows = {};
    const auto returned = exchanged(std::move(ordered), schedule_.receive_rows, schedule_.send_rows);
    return {packed_.values(returned), packed_.weights(returned)};
  }

 private:
  void gather(const at::Tensor& rows, const at::Tensor& x_NH, const RouteOrder& order) const {
    kernels::gather_rows_of_routes(rows, x_NH, order.route_of_slot, routing_.ids_Nk.size(1));
  }
  at::Tensor gathered(const at::Tensor& x_NH, const RouteOrder& order) const {
    const auto rows = context_.empty({schedule_.num_sent, packed_.hidden});
    gather(rows, x_NH, order);
    return rows;
  }
  at::Tensor exchanged(at::Tensor sent, std::span<const int64_t> send_rows,
                       std::span<const int64_t> receive_rows) const {
    const int64_t num_received = std::accumulate(receive_rows.begin(), receive_rows.end(), int64_t{0});
    const auto received = context_.empty({num_received, sent.size(1)});
    comm::all_to_all_rows(group_, received, sent, receive_rows, send_rows).wait();
    return received;
  }

  const OpContext& context_;
  comm::Communicator& group_;
  const PinnedRouting& routing_;
  const RouteSchedule& schedule_;
  PackedRow packed_;
  Category kept_;
};

}  // namespace

void one_shot_forward(const DispatchLayer& layer, const DispatchPlan& plan, const at::Tensor& y_NH,
                      const at::Tensor& x_NH, DispatchSaved* saved) {
  const auto& [context, group, routing, weights, options] = layer;
  const auto schedule = schedule_routes(routing.counts, plan, /*chunk=*/0, group.rank());
  HelperExperts helpers(layer, plan);
  const memory::Scope scope(Category::kDispatch);
  const auto kept = saved != nullptr ? Category::kSaved : Category::kDispatch;
  const Transport transport(layer, schedule, kept);
  RouteOrder order;
  at::Tensor gate_up_R2I;
  {
    const memory::Scope scope_of_kept(kept);
    order = make_order(layer, schedule);
  }
  auto [x_RH, weight_R] = transport.out_with_weights(x_NH, order);
  auto y_RH = x_RH;
  if (saved != nullptr) {
    y_RH = context.empty({schedule.num_received, x_NH.size(1)});
    const memory::Scope scope_of_kept(kept);
    gate_up_R2I = context.empty({schedule.num_received, weights.gate_up_E2IH.size(1)});
    *saved = {order.slot_of_route, order.route_of_slot, x_RH, weight_R, gate_up_R2I};
  }
  experts_forward(context, y_RH, {x_RH, weight_R, schedule.rows_of_expert}, {weights, helpers.wait()},
                  gate_up_R2I, tile_rows(options, weights));
  x_RH.reset(), weight_R.reset();
  const auto rows = transport.back(std::move(y_RH));
  kernels::combine_rows(y_NH, rows, order.slot_of_route, routing.ids_Nk.size(1), /*add=*/true);
}

void one_shot_backward(const DispatchLayer& layer, const DispatchPlan& plan, const DispatchGradients& grads,
                       const at::Tensor& dy_NH, const at::Tensor& x_NH, DispatchSaved* saved) {
  const auto& [context, group, routing, weights, options] = layer;
  const auto schedule = schedule_routes(routing.counts, plan, /*chunk=*/0, group.rank());
  HelperExperts helpers(layer, plan);
  const memory::Scope scope(Category::kDispatch);
  const Transport transport(layer, schedule, Category::kDispatch);
  RouteOrder order;
  RowsAtExperts rows;
  at::Tensor gate_up_R2I;
  if (saved != nullptr) {
    order = {saved->slot_of_route, saved->route_of_slot};
    rows = {saved->x_RH, saved->weight_R}, gate_up_R2I = saved->gate_up_R2I;
    *saved = {};
  } else {
    order = make_order(layer, schedule);
    rows = transport.out_with_weights(x_NH, order);
  }
  RowsAtExperts back{transport.out(dy_NH, order), context.empty({schedule.num_received}, at::kFloat)};
  const auto helped_grads = helpers.make_gradients(grads.experts);
  experts_backward(context,
                   {back.x_RH,
                    back.weight_R,
                    {rows.x_RH, rows.weight_R, schedule.rows_of_expert},
                    weights,
                    grads.experts,
                    gate_up_R2I,
                    tile_rows(options, weights)},
                   helpers.wait(), helped_grads);
  rows = {}, gate_up_R2I.reset();

  const auto returned = transport.back_with_weights(std::move(back));
  kernels::gather_values(grads.dweights_Nk.view({-1}), returned.weight_R, order.slot_of_route);
  kernels::combine_rows(grads.dx_NH, returned.x_RH, order.slot_of_route, routing.ids_Nk.size(1),
                        /*add=*/false);
  helpers.send_home(helped_grads, grads.experts);
}

}  // namespace steppe::ops
