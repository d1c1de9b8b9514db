#include "steppe/ops/moe_dispatch/chunk_pass.h"

#include <algorithm>

#include "steppe/comm/collectives.h"
#include "steppe/kernels/permute.h"
#include "steppe/memory/scope.h"
#include "steppe/ops/moe_dispatch/pipelined.h"

namespace steppe::ops {

using memory::Category;

namespace {

at::Tensor first_rows(const at::Tensor& x, int64_t rows) {
  return x.narrow(0, 0, rows);
}

}  // namespace

int64_t slot_rows(const DispatchPlan& plan, int64_t rank) {
  int64_t most = 0;
  for (const auto& chunk : plan.chunks) most = std::max(most, chunk.rows_of_rank[rank]);
  if (plan.chunk_rows() == 0) return 0;
  const int64_t granule = (plan.chunk_rows() + 31) / 32, granules = (most + granule - 1) / granule;
  return std::min(std::max<int64_t>(33, granules) * granule, plan.degree * plan.chunk_rows());
}

int64_t tile_rows_of(const DispatchPlan& plan, int64_t tile_rows) {
  if (tile_rows > 0) return tile_rows;
  // Small products are slow: below 512 rows an eighth of a chunk rather than a sixteenth.
  const int64_t eighth = (plan.chunk_rows() + 7) / 8, sixteenth = (plan.chunk_rows() + 15) / 16;
  return std::max({int64_t{1}, sixteenth, std::min<int64_t>(512, eighth)});
}

ChunkPass::ChunkPass(const OpContext& context, comm::Communicator& group, const DispatchPlan& plan,
                     const PinnedRouting& routing, const ExpertWeights& weights, int64_t tile_rows, Pass pass)
    : group_(group),
      plan_(plan),
      routing_(routing),
      num_tokens_(routing.ids_Nk.size(0)),
      k_(routing.ids_Nk.size(1)) {
  const int64_t hidden = weights.down_EHI.size(1), intermediate = weights.down_EHI.size(2);
  const int64_t tile_limit = tile_rows_of(plan, tile_rows);
  for (int64_t chunk = 0; chunk < num_chunks(); ++chunk) {
    schedules_.push_back(schedule_routes(routing.counts, plan, chunk, group.rank()));
    tiles_.push_back(cut_tiles(schedules_.back().rows_of_expert, tile_limit));
  }
  const bool backward = pass == Pass::kBackward;
  const int64_t slot = slot_rows(plan, group.rank()),
                routes = k_ * routing.counts.split.tokens(0, num_tokens_);
  const memory::Scope scope(Category::kDispatch);
  for (int i = 0; i < 2; ++i) {
    slot_x_[i] = context.empty({slot, hidden});
    if (backward) slot_dy_[i] = context.empty({slot, hidden});
    slot_weight_[i] = context.empty({slot}, at::kFloat);
    source_RH[i] = context.empty({routes, hidden});
  }
  source_weight_R = context.empty({routes}, at::kFloat);
  for (auto& order : orders_) order = {context.empty({routes}, at::kInt), context.empty({routes}, at::kInt)};
  order_scratch_ = make_order_scratch(context, routes);
  ids_ck_ = context.empty({routes}, at::kInt);
  values_ck_ = context.empty({routes}, at::kFloat);

  const memory::Scope expert(Category::kExpert);
  tile.x_TH = context.empty({tile_limit, hidden});
  tile.weight_T = context.empty({tile_limit}, at::kFloat);
  if (backward) {
    tile.dy_TH = context.empty({tile_limit, hidden});
    tile.dweight_T = context.empty({tile_limit}, at::kFloat);
  }
  tile.workspace = {context.empty({tile_limit, 2 * intermediate}), context.empty({tile_limit, intermediate})};
}

at::Tensor ChunkPass::tokens_of(const at::Tensor& rows_NH, int64_t chunk) const {
  const auto& split = routing_.counts.split;
  const int64_t tokens = split.tokens(chunk, num_tokens_);
  if (tokens == 0) return rows_NH.narrow(0, 0, 0);
  const int64_t first = split.first_token(chunk, num_tokens_), stride = split.stride();
  return rows_NH.slice(0, first, first + (tokens - 1) * stride + 1, stride);
}

// The chunk's routes side by side, in `room`.
at::Tensor ChunkPass::routes_of(const at::Tensor& values_Nk, const at::Tensor& room, int64_t chunk) const {
  const auto strided = tokens_of(values_Nk, chunk);
  const auto together = first_rows(room, strided.numel()).view({strided.size(0), k_});
  const std::array all{kernels::RowBlock{0, 0, strided.size(0)}};
  kernels::copy_row_blocks(together, strided, all);
  return together;
}

void ChunkPass::order(int64_t chunk) {
  const auto ids = routes_of(routing_.ids_Nk, ids_ck_, chunk);
  const auto& room = orders_[chunk % 3];
  order_routes({first_rows(room.slot_of_route, ids.numel()), first_rows(room.route_of_slot, ids.numel())},
               order_scratch_, schedules_[chunk], ids);
}

void ChunkPass::gather(const at::Tensor& source, const at::Tensor& x_NH, int64_t chunk) const {
  const int64_t sent = schedules_[chunk].num_sent;
  kernels::gather_rows_of_routes(first_rows(source, sent), tokens_of(x_NH, chunk),
                                 first_rows(orders_[chunk % 3].route_of_slot, sent), k_);
}

void ChunkPass::gather_weights(int64_t chunk) const {
  const int64_t sent = schedules_[chunk].num_sent;
  const auto weights = routes_of(routing_.weights_Nk, values_ck_, chunk);
  kernels::gather_values(first_rows(source_weight_R, sent), weights.view({-1}),
                         first_rows(orders_[chunk % 3].route_of_slot, sent));
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

void ChunkPass::combine(const at::Tensor& y_NH, const at::Tensor& source, int64_t chunk, bool add) const {
  const int64_t sent = schedules_[chunk].num_sent;
  kernels::combine_rows(tokens_of(y_NH, chunk), first_rows(source, sent),
                        first_rows(orders_[chunk % 3].slot_of_route, sent), k_, add);
}

void ChunkPass::scatter_values(const at::Tensor& values_Nk, const at::Tensor& source_R, int64_t chunk) const {
  const int64_t sent = schedules_[chunk].num_sent;
  const auto places = tokens_of(values_Nk, chunk);
  const auto together = first_rows(values_ck_, sent);
  kernels::gather_values(together, first_rows(source_R, sent),
                         first_rows(orders_[chunk % 3].slot_of_route, sent));
  const std::array all{kernels::RowBlock{0, 0, places.size(0)}};
  kernels::copy_row_blocks(places, together.view({places.size(0), k_}), all);
}

void ChunkPass::load(const at::Tensor& tile_rows, const at::Tensor& slot, int64_t chunk,
                     const Tile& of) const {
  const int64_t begin = of.front().begin, rows = rows_of(of);
  kernels::copy_row_blocks(first_rows(tile_rows, rows), first_rows(slot, schedules_[chunk].num_received),
                           clip_blocks(schedules_[chunk].to_expert_order, begin, rows));
}

void ChunkPass::store(const at::Tensor& slot, const at::Tensor& tile_rows, int64_t chunk,
                      const Tile& of) const {
  const int64_t begin = of.front().begin, rows = rows_of(of);
  kernels::copy_row_blocks(first_rows(slot, schedules_[chunk].num_received), first_rows(tile_rows, rows),
                           reversed(clip_blocks(schedules_[chunk].to_expert_order, begin, rows)));
}

std::vector<int64_t> ChunkPass::rows_of_items(int64_t chunk, const Tile& of) const {
  std::vector<int64_t> rows(schedules_[chunk].rows_of_expert.size(), 0);
  for (const auto& segment : of) rows[segment.expert] += segment.rows;
  return rows;
}

}  // namespace steppe::ops
