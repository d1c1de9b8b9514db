#include "steppe/ops/moe_dispatch/chunks_in_turn.h"

#include <algorithm>

#include "steppe/kernels/permute.h"
#include "steppe/memory/scope.h"
#include "steppe/ops/moe_dispatch/chunk_mark.h"
#include "steppe/ops/moe_dispatch/chunk_sizes.h"
#include "steppe/ops/moe_dispatch/chunk_tokens.h"
#include "steppe/ops/moe_dispatch/kept_gate_up.h"
#include "steppe/ops/moe_dispatch/route_order.h"
#include "steppe/ops/moe_dispatch/route_schedule.h"

namespace steppe::ops {
namespace {

using memory::Category;

// The buffers of a pass, and the chunk that is in them.
class Turns {
 public:
  Turns(const DispatchLayer& layer, const DispatchPlan& plan, bool keeps)
      : context_(layer.context), plan_(plan), routing_(layer.routing), tokens_(layer.routing) {
    const int64_t intermediate = layer.weights.down_EHI.size(2);
    routes_ = tokens_.k * tokens_.largest();
    hidden_ = layer.weights.down_EHI.size(1);
    tile_rows_ = std::min(std::max<int64_t>(1, routes_),
                          tile_rows_of(plan, ops::tile_rows(layer.options, layer.weights)));
    {
      const memory::Scope scope(Category::kDispatch);
      order_ = {context_.empty({routes_}, at::kInt), context_.empty({routes_}, at::kInt)};
      weight_R_ = context_.empty({routes_}, at::kFloat);
      ids_ck_ = context_.empty({routes_}, at::kInt);
      values_ck_ = context_.empty({routes_}, at::kFloat);
    }
    const memory::Scope scope(Category::kExpert);
    workspace_ = {keeps ? at::Tensor{} : context_.empty({tile_rows_, 2 * intermediate}),
                  context_.empty({tile_rows_, intermediate})};
  }

  int64_t num_chunks() const { return plan_.num_chunks(); }
  int64_t tile_rows() const { return tile_rows_; }
  at::Tensor make_rows() const { return of_dispatch({routes_, hidden_}, context_.dtype); }
  at::Tensor make_values() const { return of_dispatch({routes_}, at::kFloat); }

  // Orders the chunk's routes; brings their weights. Chunks are taken in order.
  void take(int64_t chunk) {
    chunk_ = chunk, first_row_ += schedule_.num_sent;
    schedule_ = schedule_routes(routing_.counts, plan_, chunk, /*rank=*/0);
    order_routes({here(order_.slot_of_route), here(order_.route_of_slot)}, {}, schedule_,
                 tokens_.collect(ids_ck_, routing_.ids_Nk, chunk));
    kernels::gather_values(here(weight_R_),
                           tokens_.collect(values_ck_, routing_.weights_Nk, chunk).view({-1}),
                           here(order_.route_of_slot));
  }
  // The part of a buffer that the chunk fills.
  at::Tensor here(const at::Tensor& buffer) const { return first_rows(buffer, schedule_.num_sent); }
  // The chunk's part of what is kept of all rows; undefined where nothing is.
  at::Tensor kept(const at::Tensor& of_all) const {
    return of_all.defined() ? of_all.narrow(0, first_row_, schedule_.num_sent) : of_all;
  }
  at::Tensor gather(const at::Tensor& buffer, const at::Tensor& rows_NH) const {
    const auto rows = here(buffer);
    kernels::gather_rows_of_routes(rows, tokens_.rows_of(rows_NH, chunk_), here(order_.route_of_slot),
                                   tokens_.k);
    return rows;
  }
  ExpertRows with(const at::Tensor& x_RH) const {
    return {x_RH, here(weight_R_), schedule_.rows_of_expert, workspace_};
  }
  void combine(const at::Tensor& y_NH, const at::Tensor& rows, bool add) const {
    kernels::combine_rows(tokens_.rows_of(y_NH, chunk_), rows, here(order_.slot_of_route), tokens_.k, add);
  }
  void scatter(const at::Tensor& values_Nk, const at::Tensor& values_R) const {
    kernels::gather_values(here(values_ck_), values_R, here(order_.slot_of_route));
    tokens_.spread(values_Nk, here(values_ck_), chunk_);
  }

 private:
  at::Tensor of_dispatch(at::IntArrayRef sizes, at::ScalarType type) const {
    const memory::Scope scope(Category::kDispatch);
    return context_.empty(sizes, type);
  }

  const OpContext& context_;
  const DispatchPlan& plan_;
  const PinnedRouting& routing_;
  ChunkTokens tokens_;
  int64_t routes_ = 0, hidden_ = 0, tile_rows_ = 0, chunk_ = 0, first_row_ = 0;
  RouteSchedule schedule_;
  RouteOrder order_;
  at::Tensor weight_R_, ids_ck_, values_ck_;
  ExpertWorkspace workspace_;
};

}  // namespace

void in_turn_forward(const DispatchLayer& layer, const DispatchPlan& plan, const at::Tensor& y_NH,
                     const at::Tensor& x_NH, DispatchSaved* saved) {
  Turns turns(layer, plan, saved != nullptr);
  const auto kept_R2I = keep_gate_up(layer, layer.routing.ids_Nk.numel(), saved);
  const auto room = turns.make_rows();
  for (int64_t chunk = 0; chunk < turns.num_chunks(); ++chunk) {
    const ChunkMark mark(chunk, turns.num_chunks());
    turns.take(chunk);
    const auto rows = turns.gather(room, x_NH);
    expert_mlp_forward(layer.context, rows, turns.with(rows), layer.weights, turns.kept(kept_R2I),
                       turns.tile_rows());
    turns.combine(y_NH, rows, /*add=*/true);
  }
}

void in_turn_backward(const DispatchLayer& layer, const DispatchPlan& plan, const DispatchGradients& grads,
                      const at::Tensor& dy_NH, const at::Tensor& x_NH, DispatchSaved* saved) {
  Turns turns(layer, plan, saved != nullptr);
  const auto kept_R2I = take_gate_up(saved);
  const auto x_room = turns.make_rows(), dy_room = turns.make_rows();
  const auto dweight_room = turns.make_values();
  for (int64_t chunk = 0; chunk < turns.num_chunks(); ++chunk) {
    const ChunkMark mark(chunk, turns.num_chunks());
    turns.take(chunk);
    const auto x = turns.gather(x_room, x_NH), dy = turns.gather(dy_room, dy_NH);
    const auto dweight = turns.here(dweight_room);
    expert_mlp_backward(layer.context, {dy, dweight, turns.with(x), layer.weights, grads.experts,
                                        turns.kept(kept_R2I), turns.tile_rows()});
    turns.combine(grads.dx_NH, dy, /*add=*/false);
    turns.scatter(grads.dweights_Nk, dweight);
  }
}

}  // namespace steppe::ops
