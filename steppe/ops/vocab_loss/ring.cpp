// P rounds forward, P rounds backward. In round s a rank has one batch and one shard: with activations
// circulating, the batch of rank − s and its own shard; with weights circulating, its own batch and the shard
// of rank − s. The next one travels while the strips at hand are worked on, row tile by row tile.
//   forward     strip y = x·Wᵀ, folded into the running statistics of its rows, which travel with the batch
//   and are
//               home after P rounds
//   backward    the strip again, turned into its gradient by the final statistics; dW += yᵀ·x and dx += y·W
//   in fp32, of
//               which the one that belongs to what travels follows it, and is home after P rounds
// Wire per rank, of a batch of N rows and a shard of v: activations (P − 1)·N·(2·H·b + 24) + P·N·(4·H + 12);
// weights 2·(P − 1)·v·H·b + P·v·H·4.
#include <algorithm>
#include <functional>
#include <optional>
#include <vector>

#include "steppe/kernels/pointwise.h"
#include "steppe/kernels/softmax_rows.h"
#include "steppe/layout/layout.h"
#include "steppe/ops/product.h"
#include "steppe/ops/vocab_loss/traveller.h"
#include "steppe/ops/vocab_loss/travelling_sum.h"
#include "steppe/ops/vocab_loss/vocab_loss_kinds.h"

namespace steppe::ops {
namespace {

// What a round works on.
struct Round {
  at::Tensor x, targets, row_weight, stats, weight;
  int64_t first_column = 0;
};

// Where the gradients of a tile of rows are added, in fp32; asked for once its strip is ready.
struct TileGradients {
  std::function<at::Tensor()> dx, grad_weight;
};

// The strips of a round, in row tiles.
class Strips {
 public:
  Strips(const VocabLossCall& call, int64_t tile_rows, int64_t max_rows, int64_t max_columns)
      : call_(call), context_(call.context), tile_rows_(std::min(tile_rows, max_rows)) {
    strip_ = context_.empty({tile_rows_ * max_columns});
    parts_ = context_.empty({2 * tile_rows_ * 3}, at::kFloat);
    if (call.wants_gradient() && context_.dtype != at::kFloat)
      partial_ = context_.empty({tile_rows_, call.hidden()});
  }

  void forward(const Round& round, bool first) const {
    for_tiles(round, [&](int64_t begin, int64_t rows) {
      const auto y = logits(round, begin, rows);
      const auto stats = round.stats.narrow(0, begin, rows), targets = round.targets.narrow(0, begin, rows);
      if (first) return kernels::logit_statistics(stats, y, targets, round.first_column);
      const auto parts = parts_.narrow(0, 0, 2 * rows * 3).view({2, rows, 3});
      kernels::copy_cast(parts.select(0, 0), stats);
      kernels::logit_statistics(parts.select(0, 1), y, targets, round.first_column);
      kernels::merge_statistics(stats, parts);
    });
  }

  void backward(const Round& round, int64_t begin, int64_t rows, const TileGradients& gradients) const {
    const auto y = logits(round, begin, rows);
    call_.to_gradient(y, round.stats.narrow(0, begin, rows), round.targets.narrow(0, begin, rows),
                      round.row_weight.narrow(0, begin, rows), round.first_column);
    product_accumulate(context_, FlopKind::kVocab, gradients.grad_weight(), y.t(),
                       round.x.narrow(0, begin, rows));
    const auto dx = gradients.dx();
    if (!partial_.defined()) return product_add(context_, FlopKind::kVocab, dx, y, round.weight);
    const auto partial = partial_.narrow(0, 0, rows);
    product(context_, FlopKind::kVocab, partial, y, round.weight);
    kernels::add_to(dx, partial);
  }

  template <class Body>
  void for_tiles(const Round& round, const Body& body) const {
    const int64_t rows = round.x.size(0);
    for (int64_t begin = 0; begin < rows; begin += tile_rows_)
      body(begin, std::min(tile_rows_, rows - begin));
  }

 private:
  at::Tensor logits(const Round& round, int64_t begin, int64_t rows) const {
    const int64_t columns = round.weight.size(0);
    const auto y = strip_.narrow(0, 0, rows * columns).view({rows, columns});
    call_.project(y, round.x.narrow(0, begin, rows), round.weight);
    return y;
  }

  const VocabLossCall& call_;
  const OpContext& context_;
  int64_t tile_rows_;
  at::Tensor strip_, parts_, partial_;
};

class RingLoss {
 public:
  RingLoss(const VocabLossCall& call, int64_t tile_tokens, Circulate circulate)
      : call_(call), circulate_(circulate) {
    for (int64_t p = 0; p < degree(); ++p) {
      columns_.push_back(layout::even_part(call.in.vocab_size, degree(), p));
      columns_of_rank_.push_back(columns_.back().size());
    }
    stats_ = call.context.empty({call.in.x_NH.size(0), 3}, at::kFloat);
    if (circulate == Circulate::kWeights) {
      strips_.emplace(call, tile_tokens, call.in.x_NH.size(0), largest(columns_of_rank_));
    } else {
      // Even tiles: dx travels in them.
      const int64_t longest = std::max<int64_t>(1, largest(call.in.rows_of_rank));
      const int64_t num_tiles = (longest + tile_tokens - 1) / tile_tokens;
      tile_rows_ = (longest + num_tiles - 1) / num_tiles;
      strips_.emplace(call, tile_rows_, largest(call.in.rows_of_rank), call.in.weight_vH.size(0));
    }
  }

  void run() {
    const bool weights = circulate_ == Circulate::kWeights;
    weights ? forward_weights() : forward_activations();
    call_.add_loss(call_.out.row_loss_N, stats_, call_.in.targets_N);
    if (!call_.wants_gradient()) return;
    weights ? backward_weights() : backward_activations();
  }

 private:
  int64_t degree() const { return call_.group.size(); }
  static int64_t largest(std::span<const int64_t> values) {
    return *std::max_element(values.begin(), values.end());
  }
  const layout::Interval& columns_at(int64_t s) const {
    return columns_[(call_.group.rank() - s % degree() + degree()) % degree()];
  }

  Traveller traveller(Travel travel) const { return {call_.context, call_.group, std::move(travel)}; }
  // A payload with a row for each row of the batch.
  Traveller batch_traveller(const at::Tensor& own) const {
    return traveller({own, call_.in.rows_of_rank, own.sizes().slice(1).vec(), own.scalar_type()});
  }
  Traveller weight_traveller() const {
    return traveller({call_.in.weight_vH, columns_of_rank_, {call_.hidden()}, call_.context.dtype});
  }

  void forward_activations() {
    auto x = batch_traveller(call_.in.x_NH), targets = batch_traveller(call_.in.targets_N);
    auto stats = traveller({stats_, call_.in.rows_of_rank, {3}, at::kFloat, /*returns=*/true});
    for (int64_t s = 0; s < degree(); ++s) {
      x.send_on(s);
      targets.send_on(s);
      stats.wait();
      strips_->forward({.x = x.at_round(s),
                        .targets = targets.at_round(s),
                        .row_weight = {},
                        .stats = stats.at_round(s),
                        .weight = call_.in.weight_vH,
                        .first_column = call_.in.first_column},
                       s == 0);
      stats.send_on(s);
      x.wait();
      targets.wait();
    }
    stats.wait();
  }

  void backward_activations() {
    auto x = batch_traveller(call_.in.x_NH), targets = batch_traveller(call_.in.targets_N);
    auto row_weight = batch_traveller(call_.in.row_weight_N), stats = batch_traveller(stats_);
    const bool in_place = degree() == 1 && call_.context.dtype == at::kFloat;
    TravellingSum dx(call_.context, call_.group, call_.in.rows_of_rank, call_.hidden(), tile_rows_,
                     in_place ? call_.out.dx_NH : at::Tensor());
    for (int64_t s = 0; s < degree(); ++s) {
      for (auto* payload : {&x, &targets, &row_weight, &stats}) payload->send_on(s);
      const Round round{.x = x.at_round(s),
                        .targets = targets.at_round(s),
                        .row_weight = row_weight.at_round(s),
                        .stats = stats.at_round(s),
                        .weight = call_.in.weight_vH,
                        .first_column = call_.in.first_column};
      for (int64_t t = 0; t < dx.num_tiles(); ++t) {
        const int64_t rows = std::min(tile_rows_, round.x.size(0) - t * tile_rows_);
        const TileGradients gradients{[&] { return dx.tile(s, t); },
                                      [&] { return call_.out.grad_weight_vH; }};
        if (rows > 0) strips_->backward(round, t * tile_rows_, rows, gradients);
        dx.send_on(s, t);
      }
      for (auto* payload : {&x, &targets, &row_weight, &stats}) payload->wait();
    }
    for (int64_t t = 0; !in_place && t < dx.num_tiles(); ++t) {
      const auto home = dx.tile(degree(), t);
      if (home.size(0) > 0) kernels::copy_cast(call_.out.dx_NH.narrow(0, t * tile_rows_, home.size(0)), home);
    }
  }

  void forward_weights() {
    auto weight = weight_traveller();
    for (int64_t s = 0; s < degree(); ++s) {
      weight.send_on(s);
      strips_->forward({.x = call_.in.x_NH,
                        .targets = call_.in.targets_N,
                        .row_weight = {},
                        .stats = stats_,
                        .weight = weight.at_round(s),
                        .first_column = columns_at(s).begin},
                       s == 0);
      weight.wait();
    }
  }

  // dW travels as the accumulator itself: what other ranks add, they add to it.
  void backward_weights() {
    auto weight = weight_traveller();
    auto grad_weight = traveller({call_.out.grad_weight_vH,
                                  columns_of_rank_,
                                  {call_.hidden()},
                                  at::kFloat,
                                  /*returns=*/true});
    const bool fp32 = call_.context.dtype == at::kFloat;
    const auto dx = fp32 ? call_.out.dx_NH : call_.context.empty(call_.out.dx_NH.sizes(), at::kFloat);
    kernels::fill_zero(dx);
    for (int64_t s = 0; s < degree(); ++s) {
      weight.send_on(s);
      const Round round{.x = call_.in.x_NH,
                        .targets = call_.in.targets_N,
                        .row_weight = call_.in.row_weight_N,
                        .stats = stats_,
                        .weight = weight.at_round(s),
                        .first_column = columns_at(s).begin};
      const auto arrived = [&] {
        grad_weight.wait();
        return grad_weight.at_round(s);
      };
      strips_->for_tiles(round, [&](int64_t begin, int64_t rows) {
        strips_->backward(round, begin, rows, {[&] { return dx.narrow(0, begin, rows); }, arrived});
      });
      grad_weight.wait();  // in a batch without rows, nobody has yet
      grad_weight.send_on(s);
      weight.wait();
    }
    grad_weight.wait();
    if (!fp32) kernels::copy_cast(call_.out.dx_NH, dx);
  }

  const VocabLossCall& call_;
  const Circulate circulate_;
  std::vector<layout::Interval> columns_;
  std::vector<int64_t> columns_of_rank_;
  int64_t tile_rows_ = 0;  // of the travelling dx
  at::Tensor stats_;
  std::optional<Strips> strips_;
};

}  // namespace

void ring_loss(const VocabLossCall& call, int64_t tile_tokens, Circulate circulate) {
  RingLoss(call, tile_tokens, circulate).run();
}

}  // namespace steppe::ops
