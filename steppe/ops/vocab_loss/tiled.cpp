// Tile t of every rank is its rows [t·n, (t+1)·n), fewer or none at its end. For each tile, in this order on
// all ranks:
//   gather of tile t+1 begins       the tile's rows, targets and weights to everyone
//   strip y = x·Wᵀ                  [Σ rows, v]
//   statistics to everyone          12 bytes per row of the tile; merged, they are the softmax over V
//   y becomes its gradient in place
//   dW += yᵀ·x
//   dx of tile t−1 ends             its parts have arrived while this tile was worked on: summed in rank
//   order dx of tile t begins             y·W to the owners of its rows
// Wire per rank: (P − 1)·N·(2·H·b + 8 + 12·P) bytes.
#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "steppe/comm/collectives.h"
#include "steppe/kernels/permute.h"
#include "steppe/kernels/pointwise.h"
#include "steppe/kernels/softmax_rows.h"
#include "steppe/ops/product.h"
#include "steppe/ops/vocab_loss/kept_rows.h"
#include "steppe/ops/vocab_loss/vocab_loss_kinds.h"

namespace steppe::ops {
namespace {

using Pendings = std::vector<comm::Pending>;

void wait_all(Pendings& pendings) {
  for (auto& pending : pendings) pending.wait();
  pendings.clear();
}

// Rows of each rank in one tile, and where this rank's lie among them.
struct TileRows {
  std::vector<int64_t> of_rank;
  int64_t total = 0, before = 0, own = 0;
  int64_t begin = 0;  // of this rank's, among its kept rows
};

struct Tile {
  TileRows rows;
  at::Tensor x, targets, row_weight;
  Pendings arriving;
};

struct GatherSlot {
  at::Tensor x, targets, row_weight;
};

class TiledLoss {
 public:
  TiledLoss(const VocabLossCall& call, int64_t tile_tokens)
      : call_(call),
        tile_tokens_(tile_tokens),
        kept_(call.in.host_targets.empty() ? KeptRows(call.in.x_NH.size(0)) : KeptRows(call.in.host_targets)),
        kept_of_rank_(call.in.targets_of_rank.empty() ? call.in.rows_of_rank : call.in.targets_of_rank) {
    const int64_t longest = *std::max_element(kept_of_rank_.begin(), kept_of_rank_.end());
    num_tiles_ = (longest + tile_tokens - 1) / tile_tokens;
    allocate();
  }

  void run() {
    if (!kept_.all()) clear_outputs();
    if (num_tiles_ == 0) return;
    Tile next = gather(0);
    for (int64_t t = 0; t < num_tiles_; ++t) {
      Tile tile = std::exchange(next, t + 1 < num_tiles_ ? gather(t + 1) : Tile{});
      wait_all(tile.arriving);
      const auto strip = strip_.narrow(0, 0, tile.rows.total);
      call_.project(strip, tile.x, call_.in.weight_vH);
      const auto stats = statistics(tile, strip);
      add_loss(tile, stats);
      if (call_.wants_gradient()) propagate(tile, strip, stats);
    }
    finish_dx();
  }

 private:
  bool alone() const { return call_.group.size() == 1; }
  bool staged() const { return !alone() || !kept_.all(); }
  int rank() const { return call_.group.rank(); }
  // The fp32 sum of dx needs no place of its own.
  bool sums_in_dx() const { return call_.context.dtype == at::kFloat && kept_.all(); }

  TileRows rows_of(int64_t tile) const {
    TileRows rows;
    rows.begin = std::min(tile * tile_tokens_, kept_.size());
    for (const int64_t kept : kept_of_rank_) {
      rows.of_rank.push_back(std::clamp<int64_t>(kept - tile * tile_tokens_, 0, tile_tokens_));
    }
    rows.own = rows.of_rank[rank()];
    rows.before = std::accumulate(rows.of_rank.begin(), rows.of_rank.begin() + rank(), int64_t{0});
    rows.total = std::accumulate(rows.of_rank.begin(), rows.of_rank.end(), int64_t{0});
    return rows;
  }

  // The first tile is the largest, on every rank.
  void allocate() {
    const auto& context = call_.context;
    const auto first = rows_of(0);
    const int64_t rows = first.total, hidden = call_.hidden(), degree = call_.group.size();
    const bool gradient = call_.wants_gradient();
    strip_ = context.empty({rows, call_.in.weight_vH.size(0)});
    stats_parts_ = context.empty({degree * rows * 3}, at::kFloat);
    if (!alone()) stats_ = context.empty({rows, 3}, at::kFloat);
    if (staged()) {
      slots_.resize(std::min<int64_t>(2, num_tiles_));
      for (auto& slot : slots_) {
        slot = {context.empty({rows, hidden}), context.empty({rows}, at::kInt), {}};
        if (gradient) slot.row_weight = context.empty({rows}, at::kFloat);
      }
    }
    if (!kept_.all() && call_.out.row_loss_N.defined()) row_loss_ = context.empty({first.own}, at::kFloat);
    if (!gradient) return;
    if (!alone()) {
      partial_ = context.empty({rows, hidden});
      parts_ = context.empty({(degree - 1) * first.own, hidden});
      if (!sums_in_dx()) sum_ = context.empty({first.own, hidden}, at::kFloat);
    }
    if (!kept_.all() && (alone() || context.dtype != at::kFloat))
      kept_dx_ = context.empty({first.own, hidden});
  }

  void clear_outputs() {
    if (call_.out.row_loss_N.defined()) kernels::fill_zero(call_.out.row_loss_N);
    if (call_.wants_gradient()) kernels::fill_zero(call_.out.dx_NH);
  }

  // Kept rows of the batch: themselves, or moved together into `place`.
  at::Tensor own_rows(const at::Tensor& of_batch, const at::Tensor& place, const TileRows& rows) const {
    if (kept_.all()) return of_batch.narrow(0, rows.begin, rows.own);
    const auto own = place.narrow(0, rows.before, rows.own);
    kernels::copy_row_blocks(own, of_batch, kept_.blocks(rows.begin, rows.own));
    return own;
  }

  Tile gather(int64_t t) {
    Tile tile{rows_of(t), {}, {}, {}, {}};
    const auto slot = staged() ? slots_[t % static_cast<int64_t>(slots_.size())] : GatherSlot{};
    const auto fetch = [&](const at::Tensor& of_batch, const at::Tensor& buffer) {
      const auto place = staged() ? buffer.narrow(0, 0, tile.rows.total) : at::Tensor();
      const auto own = own_rows(of_batch, place, tile.rows);
      if (alone()) return own;
      tile.arriving.push_back(comm::all_gather_rows(call_.group, place, own, tile.rows.of_rank));
      return place;
    };
    tile.x = fetch(call_.in.x_NH, slot.x);
    tile.targets = fetch(call_.in.targets_N, slot.targets);
    if (call_.wants_gradient()) tile.row_weight = fetch(call_.in.row_weight_N, slot.row_weight);
    return tile;
  }

  // Over all columns. Where this rank has all of them, the strip becomes its gradient on the way.
  at::Tensor statistics(const Tile& tile, const at::Tensor& strip) const {
    const int64_t rows = tile.rows.total, degree = call_.group.size();
    const auto parts = stats_parts_.narrow(0, 0, degree * rows * 3).view({degree, rows, 3});
    const auto own = parts.select(0, rank());
    if (alone() && call_.wants_gradient()) {
      kernels::statistics_and_gradient(own, strip, tile.targets, tile.row_weight, call_.in.first_column,
                                       call_.loss_shape);
      return own;
    }
    kernels::logit_statistics(own, strip, tile.targets, call_.in.first_column);
    if (alone()) return own;
    comm::all_gather(call_.group, parts.view({degree * rows, 3}), own).wait();
    const auto merged = stats_.narrow(0, 0, rows);
    kernels::merge_statistics(merged, parts);
    return merged;
  }

  void add_loss(const Tile& tile, const at::Tensor& stats) const {
    const auto& rows = tile.rows;
    at::Tensor row_loss;
    if (row_loss_.defined())
      row_loss = row_loss_.narrow(0, 0, rows.own);
    else if (call_.out.row_loss_N.defined())
      row_loss = call_.out.row_loss_N.narrow(0, rows.begin, rows.own);
    call_.add_loss(row_loss, stats.narrow(0, rows.before, rows.own),
                   tile.targets.narrow(0, rows.before, rows.own));
    if (row_loss_.defined()) put_back(call_.out.row_loss_N, row_loss, rows);
  }

  void put_back(const at::Tensor& batch, const at::Tensor& kept, const TileRows& rows) const {
    kernels::copy_row_blocks(batch, kept, reversed(kept_.blocks(rows.begin, rows.own)));
  }

  void propagate(const Tile& tile, const at::Tensor& strip, const at::Tensor& stats) {
    const auto& context = call_.context;
    if (!alone()) call_.to_gradient(strip, stats, tile.targets, tile.row_weight, call_.in.first_column);
    product_accumulate(context, FlopKind::kVocab, call_.out.grad_weight_vH, strip.t(), tile.x);
    finish_dx();
    dx_rows_ = tile.rows;
    if (alone()) {
      const auto dx = dx_target();
      product(context, FlopKind::kVocab, dx, strip, call_.in.weight_vH);
      if (!kept_.all()) put_back(call_.out.dx_NH, dx, dx_rows_);
      return;
    }
    const auto partial = partial_.narrow(0, 0, tile.rows.total);
    product(context, FlopKind::kVocab, partial, strip, call_.in.weight_vH);
    start_dx(partial);
  }

  // Where this tile's dx goes in the working precision.
  at::Tensor dx_target() const {
    return kept_.all() ? call_.out.dx_NH.narrow(0, dx_rows_.begin, dx_rows_.own)
                       : kept_dx_.narrow(0, 0, dx_rows_.own);
  }

  void start_dx(const at::Tensor& partial) {
    std::vector<at::Tensor> sends;
    int64_t from = 0, to = 0;
    for (int peer = 0; peer < call_.group.size(); ++peer) {
      sends.push_back(partial.narrow(0, from, dx_rows_.of_rank[peer]));
      from += dx_rows_.of_rank[peer];
      // This rank's own part is read where it is.
      dx_parts_.push_back(peer == rank() ? sends.back() : parts_.narrow(0, to, dx_rows_.own));
      if (peer != rank()) to += dx_rows_.own;
    }
    dx_arriving_.push_back(call_.group.exchange(sends, dx_parts_));
  }

  void finish_dx() {
    if (dx_parts_.empty()) return;
    wait_all(dx_arriving_);
    for (auto& part : dx_parts_) part = part.view({-1});
    const bool in_fp32 = call_.context.dtype == at::kFloat;
    const auto sum = sums_in_dx() ? dx_target() : sum_.narrow(0, 0, dx_rows_.own);
    kernels::fill_zero(sum);
    kernels::add_parts_in_order(sum.view({-1}), dx_parts_);
    const auto dx = in_fp32 ? sum : dx_target();
    if (!in_fp32) kernels::copy_cast(dx, sum);
    if (!kept_.all()) put_back(call_.out.dx_NH, dx, dx_rows_);
    dx_parts_.clear();
  }

  const VocabLossCall& call_;
  const int64_t tile_tokens_;
  const KeptRows kept_;
  const std::span<const int64_t> kept_of_rank_;
  int64_t num_tiles_ = 0;
  at::Tensor strip_, stats_parts_, stats_, row_loss_;
  std::vector<GatherSlot> slots_;
  at::Tensor partial_, parts_, sum_, kept_dx_;
  // dx on its way to the owners of its rows.
  TileRows dx_rows_;
  std::vector<at::Tensor> dx_parts_;
  Pendings dx_arriving_;
};

}  // namespace

void tiled_loss(const VocabLossCall& call, int64_t tile_tokens) {
  TiledLoss(call, tile_tokens).run();
}

}  // namespace steppe::ops
