#include "steppe/ops/expert_mlp/expert_mlp.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "steppe/base/error.h"
#include "steppe/kernels/row_bias.h"
#include "steppe/kernels/swiglu.h"
#include "steppe/memory/scope.h"
#include "steppe/ops/expert_mlp/tiles.h"
#include "steppe/ops/product.h"

namespace steppe::ops {
namespace {

int64_t largest(const std::vector<Tile>& tiles) {
  int64_t rows = 0;
  for (const auto& tile : tiles) rows = std::max(rows, rows_of(tile));
  return rows;
}

// The caller's, or one for this call.
ExpertWorkspace workspace(const OpContext& context, const ExpertRows& rows, int64_t most, int64_t two_i,
                          bool kept) {
  const auto& given = rows.workspace;
  if (!given.act_TI.defined()) {
    return {kept ? at::Tensor{} : context.empty({most, two_i}), context.empty({most, two_i / 2})};
  }
  STEPPE_ASSERT(given.act_TI.size(0) >= most, "[expert_mlp] a workspace of {} rows for a tile of {}",
                given.act_TI.size(0), most);
  return given;
}

at::Tensor of_expert(const at::Tensor& biases, int64_t expert) {
  return biases.defined() ? biases.select(0, expert) : biases;
}

kernels::SwigluOptions activation(const ExpertWeights& weights, int64_t expert) {
  return {weights.form, of_expert(weights.gate_up_bias_E2I, expert)};
}

// Calls use(segment, rows of the segment within the tile's buffers).
template <class Use>
void for_segments(const Tile& tile, Use use) {
  const int64_t first = tile.front().begin;
  for (const auto& segment : tile) use(segment, segment.begin - first);
}

}  // namespace

void expert_mlp_forward(const OpContext& context, const at::Tensor& y_RH, const ExpertRows& rows,
                        const ExpertWeights& weights, const at::Tensor& keep_gate_up_R2I, int64_t tile_rows) {
  const memory::Scope scope(memory::Category::kExpert);
  const int64_t total = rows.x_RH.size(0), two_i = weights.gate_up_E2IH.size(1);
  STEPPE_ASSERT(std::accumulate(rows.rows_of_expert.begin(), rows.rows_of_expert.end(), int64_t{0}) == total,
                "[expert_mlp] rows_of_expert sums to another number than the {} rows given", total);
  if (total == 0) return;
  const auto tiles = cut_tiles(rows.rows_of_expert, tile_rows);
  const int64_t most = largest(tiles);
  const auto [gate_up_tile, act_tile] = workspace(context, rows, most, two_i, keep_gate_up_R2I.defined());
  for (const auto& tile : tiles) {
    const int64_t begin = tile.front().begin, n = rows_of(tile);
    const auto gate_up =
        keep_gate_up_R2I.defined() ? keep_gate_up_R2I.narrow(0, begin, n) : gate_up_tile.narrow(0, 0, n);
    const auto act = act_tile.narrow(0, 0, n);
    for_segments(tile, [&](const Segment& s, int64_t at) {
      const auto part = gate_up.narrow(0, at, s.rows);
      product(context, FlopKind::kExpert, part, rows.x_RH.narrow(0, s.begin, s.rows),
              weights.gate_up_E2IH.select(0, s.expert).t());
      const auto w = rows.weight_R.narrow(0, s.begin, s.rows);
      const auto y = y_RH.narrow(0, s.begin, s.rows);
      kernels::swiglu_forward(act.narrow(0, at, s.rows), part, w, activation(weights, s.expert));
      product(context, FlopKind::kExpert, y, act.narrow(0, at, s.rows),
              weights.down_EHI.select(0, s.expert).t());
      if (weights.down_bias_EH.defined())
        kernels::add_row_bias(y, weights.down_bias_EH.select(0, s.expert), w);
    });
  }
}

void expert_mlp_backward(const OpContext& context, const ExpertBackward& args) {
  const memory::Scope scope(memory::Category::kExpert);
  const auto& rows = args.rows;
  const int64_t total = rows.x_RH.size(0), two_i = args.weights.gate_up_E2IH.size(1);
  if (total == 0) return;
  const bool kept = args.kept_gate_up_R2I.defined();
  const auto tiles = cut_tiles(rows.rows_of_expert, args.tile_rows);
  const int64_t most = largest(tiles);
  const auto [gate_up_tile, act_tile] = workspace(context, rows, most, two_i, kept);
  for (const auto& tile : tiles) {
    const int64_t begin = tile.front().begin, n = rows_of(tile);
    const auto gate_up = kept ? args.kept_gate_up_R2I.narrow(0, begin, n) : gate_up_tile.narrow(0, 0, n);
    const auto act = act_tile.narrow(0, 0, n);
    for_segments(tile, [&](const Segment& s, int64_t at) {
      const auto x = rows.x_RH.narrow(0, s.begin, s.rows), dy = args.dy_RH.narrow(0, s.begin, s.rows);
      const auto a = act.narrow(0, at, s.rows), gu = gate_up.narrow(0, at, s.rows);
      if (!kept)
        product(context, FlopKind::kExpert, gu, x, args.weights.gate_up_E2IH.select(0, s.expert).t());
      product(context, FlopKind::kExpert, a, dy, args.weights.down_EHI.select(0, s.expert));
      const auto w = rows.weight_R.narrow(0, s.begin, s.rows), dw = args.dweight_R.narrow(0, s.begin, s.rows);
      kernels::swiglu_backward_inplace(gu, a, w, dw, activation(args.weights, s.expert));
      if (args.weights.gate_up_bias_E2I.defined())
        kernels::add_column_sums(args.grads.gate_up_bias_E2I.select(0, s.expert), gu, {});
      if (args.weights.down_bias_EH.defined()) {
        kernels::add_row_dots(dw, dy, args.weights.down_bias_EH.select(0, s.expert));
        kernels::add_column_sums(args.grads.down_bias_EH.select(0, s.expert), dy, w);
      }
      product_accumulate(context, FlopKind::kExpert, args.grads.down_EHI.select(0, s.expert), dy.t(), a);
      product_accumulate(context, FlopKind::kExpert, args.grads.gate_up_E2IH.select(0, s.expert), gu.t(), x);
      product(context, FlopKind::kExpert, dy, gu, args.weights.gate_up_E2IH.select(0, s.expert));
    });
  }
}

}  // namespace steppe::ops
