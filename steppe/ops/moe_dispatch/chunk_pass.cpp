#include "steppe/ops/moe_dispatch/chunk_pass.h"

#include <algorithm>

#include "steppe/comm/collectives.h"
#include "steppe/kernels/permute.h"
#include "steppe/memory/scope.h"
#include "steppe/ops/moe_dispatch/chunk_sizes.h"

namespace steppe::ops {

using memory::Category;

ChunkPass::ChunkPass(const DispatchLayer& layer, const DispatchPlan& plan, Pass pass, bool keeps)
    : group_(layer.expert_group),
      plan_(plan),
      routing_(layer.routing),
      tokens_(layer.routing),
      packed_(layer.weights.down_EHI.size(1), layer.context.dtype) {
  const auto& context = layer.context;
  const int64_t hidden = layer.weights.down_EHI.size(1), intermediate = layer.weights.down_EHI.size(2);
  const int64_t tile_limit = tile_rows_of(plan, tile_rows(layer.options, layer.weights));
  for (int64_t chunk = 0; chunk < num_chunks(); ++chunk) {
    schedules_.push_back(schedule_routes(routing_.counts, plan, chunk, group_.rank()));
    tiles_.push_back(cut_tiles(schedules_.back().rows_of_expert, tile_limit));
  }
  const bool backward = pass == Pass::kBackward;
  slot_rows_ = slot_rows(plan, group_.rank()), routes_ = tokens_.k * tokens_.largest();
  const memory::Scope scope(Category::kDispatch);
  for (int i = 0; i < 2; ++i) {
    slot_x_[i] = context.empty({slot_rows_, packed_.width()});
    if (backward)
      slot_dy_[i] = context.empty({std::max(slot_rows_ * hidden, routes_ * packed_.width())});
    else
      source[i] = context.empty({routes_, packed_.width()});
  }
  if (backward) source_dy_ = context.empty({routes_ * columns(0).width});
  for (auto& order : orders_)
    order = {context.empty({routes_}, at::kInt), context.empty({routes_}, at::kInt)};
  order_scratch_ = make_order_scratch(context, routes_);
  ids_ck_ = context.empty({routes_}, at::kInt);
  values_ck_ = context.empty({routes_}, at::kFloat);

  const memory::Scope expert(Category::kExpert);
  tile.x_TH = context.empty({tile_limit, hidden});
  tile.weight_T = context.empty({tile_limit}, at::kFloat);
  if (backward) {
    tile.dy_TH = context.empty({tile_limit, hidden});
    tile.dweight_T = context.empty({tile_limit}, at::kFloat);
  }
  tile.workspace = {keeps ? at::Tensor{} : context.empty({tile_limit, 2 * intermediate}),
                    context.empty({tile_limit, intermediate})};
}

int64_t ChunkPass::num_received() const {
  int64_t rows = 0;
  for (const auto& schedule : schedules_) rows += schedule.num_received;
  return rows;
}

void ChunkPass::order(int64_t chunk) {
  const auto ids = tokens_.collect(ids_ck_, routing_.ids_Nk, chunk);
  const auto& room = orders_[chunk % 3];
  order_routes({first_rows(room.slot_of_route, ids.numel()), first_rows(room.route_of_slot, ids.numel())},
               order_scratch_, schedules_[chunk], ids);
}

void ChunkPass::gather(const at::Tensor& source_rows, const at::Tensor& rows_NH, int64_t chunk) const {
  const int64_t sent = schedules_[chunk].num_sent;
  kernels::gather_rows_of_routes(first_rows(source_rows, sent), tokens_.rows_of(rows_NH, chunk),
                                 first_rows(orders_[chunk % 3].route_of_slot, sent), tokens_.k);
}

void ChunkPass::gather_packed(const at::Tensor& source_RP, const at::Tensor& x_NH, int64_t chunk) const {
  gather(packed_.values(source_RP), x_NH, chunk);
  const int64_t sent = schedules_[chunk].num_sent;
  const auto weights = tokens_.collect(values_ck_, routing_.weights_Nk, chunk);
  kernels::gather_values(packed_.weights(first_rows(source_RP, sent)), weights.view({-1}),
                         first_rows(orders_[chunk % 3].route_of_slot, sent));
}

ChunkPass::Columns ChunkPass::columns(int half) const {
  const int64_t aligned = 16 / packed_.itemsize;
  const int64_t first =
      std::min(((packed_.hidden + 1) / 2 + aligned - 1) / aligned * aligned, packed_.hidden);
  return half == 0 ? Columns{0, first} : Columns{first, packed_.hidden - first};
}

at::Tensor ChunkPass::slot_dy(int64_t chunk, int half) const {
  const auto [begin, width] = columns(half);
  return slot_dy_[chunk % 2].narrow(0, slot_rows_ * begin, slot_rows_ * width).view({slot_rows_, width});
}

at::Tensor ChunkPass::source_in_slot_dy(int64_t chunk) const {
  return slot_dy_[chunk % 2].narrow(0, 0, routes_ * packed_.width()).view({routes_, packed_.width()});
}

comm::Pending ChunkPass::dispatch_dy(const at::Tensor& dy_NH, int64_t chunk, int half) const {
  const auto [begin, width] = columns(half);
  const auto source = source_dy_.narrow(0, 0, routes_ * width).view({routes_, width});
  gather(source, dy_NH.narrow(1, begin, width), chunk);
  return dispatch(slot_dy(chunk, half), source, chunk);
}

comm::Pending ChunkPass::dispatch(const at::Tensor& slot, const at::Tensor& source, int64_t chunk) const {
  const auto& s = schedules_[chunk];
  return comm::all_to_all_rows(group_, first_rows(slot, s.num_received), first_rows(source, s.num_sent),
                               s.receive_rows, s.send_rows);
}

comm::Pending ChunkPass::give_back(const at::Tensor& source, const at::Tensor& slot, int64_t chunk) const {
  const auto& s = schedules_[chunk];
  return comm::all_to_all_rows(group_, first_rows(source, s.num_sent), first_rows(slot, s.num_received),
                               s.send_rows, s.receive_rows);
}

void ChunkPass::combine(const at::Tensor& y_NH, const at::Tensor& source_RP, int64_t chunk, bool add) const {
  const int64_t sent = schedules_[chunk].num_sent;
  kernels::combine_rows(tokens_.rows_of(y_NH, chunk), packed_.values(first_rows(source_RP, sent)),
                        first_rows(orders_[chunk % 3].slot_of_route, sent), tokens_.k, add);
}

void ChunkPass::scatter_weights(const at::Tensor& values_Nk, const at::Tensor& source_RP,
                                int64_t chunk) const {
  const int64_t sent = schedules_[chunk].num_sent;
  const auto together = first_rows(values_ck_, sent);
  kernels::gather_values(together, packed_.weights(first_rows(source_RP, sent)),
                         first_rows(orders_[chunk % 3].slot_of_route, sent));
  tokens_.spread(values_Nk, together, chunk);
}

void ChunkPass::load(const at::Tensor& tile_rows, const at::Tensor& slot, int64_t chunk,
                     const Tile& of) const {
  const int64_t begin = of.front().begin, rows = ops::rows_of(of);
  kernels::copy_row_blocks(first_rows(tile_rows, rows), first_rows(slot, schedules_[chunk].num_received),
                           clip_blocks(schedules_[chunk].to_expert_order, begin, rows));
}

void ChunkPass::load_packed(int64_t chunk, const Tile& of) const {
  load(tile.x_TH, packed_.values(slot_x(chunk)), chunk, of);
  load(tile.weight_T, packed_.weights(slot_x(chunk)), chunk, of);
}

void ChunkPass::load_dy(int64_t chunk, const Tile& of) const {
  for (const int half : {0, 1}) {
    const auto [begin, width] = columns(half);
    load(tile.dy_TH.narrow(1, begin, width), slot_dy(chunk, half), chunk, of);
  }
}

void ChunkPass::store_packed(const at::Tensor& tile_rows, const at::Tensor& tile_weights, int64_t chunk,
                             const Tile& of) const {
  const int64_t begin = of.front().begin, rows = ops::rows_of(of);
  const auto slot = first_rows(slot_x(chunk), schedules_[chunk].num_received);
  const auto back = reversed(clip_blocks(schedules_[chunk].to_expert_order, begin, rows));
  kernels::copy_row_blocks(packed_.values(slot), first_rows(tile_rows, rows), back);
  if (tile_weights.defined())
    kernels::copy_row_blocks(packed_.weights(slot), first_rows(tile_weights, rows), back);
}

at::Tensor ChunkPass::kept(const at::Tensor& of_all, int64_t chunk, const Tile& of) const {
  if (!of_all.defined()) return {};
  int64_t begin = of.front().begin;
  for (int64_t earlier = 0; earlier < chunk; ++earlier) begin += schedules_[earlier].num_received;
  return of_all.narrow(0, begin, ops::rows_of(of));
}

std::vector<int64_t> ChunkPass::rows_of_items(int64_t chunk, const Tile& of) const {
  std::vector<int64_t> rows(schedules_[chunk].rows_of_expert.size(), 0);
  for (const auto& segment : of) rows[segment.expert] += segment.rows;
  return rows;
}

}  // namespace steppe::ops
