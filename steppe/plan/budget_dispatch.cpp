#include <algorithm>

#include "steppe/plan/budget_sizes.h"

namespace steppe::plan {
namespace {

using memory::Category;

constexpr int64_t kPackedBytes = 32;  // at most, of a row's weight and its alignment

int64_t expert_weights(const Sizes& s) {
  return 3 * s.H * s.I;
}

// Rows of the largest tile, where all routes come at once.
int64_t tile_of(const Sizes& s, const RoutedRows& rows) {
  const int64_t limit = s.expert_tile_rows;
  return limit > 0 ? std::min(limit, rows.at_once) : rows.at_once;
}

int64_t order_bytes(const Sizes& s, const RoutedRows& rows) {
  return (rows.moves ? 20 : 8) * s.n * s.k;
}

// Gate, up and activation; where all is kept, the first two are booked as saved.
int64_t interior_of_row(const Sizes& s) {
  return (s.keeps_all() ? 1 : 3) * s.I * s.b;
}

struct Bytes {
  int64_t dispatch = 0, expert = 0;
};

// One shot: the rows, regrouped on the way in and out, and the experts' tile: whichever is more.
Bytes one_shot_forward(const Sizes& s, const RoutedRows& rows) {
  const int64_t sent = s.n * s.k, received = rows.received, row = s.H * s.b;
  const int64_t small = order_bytes(s, rows) + 4 * received;
  const int64_t tile = tile_of(s, rows) * interior_of_row(s);
  if (s.Ep == 1) return {small + sent * row, tile};
  const int64_t moving = small + std::max(2 * received, received + sent) * row;
  const int64_t working = small + received * row;
  return moving > working + tile ? Bytes{moving, 0} : Bytes{working, tile};
}

// Rows of x, their weights and their order come again, or were kept.
Bytes one_shot_backward(const Sizes& s, const RoutedRows& rows) {
  const int64_t sent = s.n * s.k, received = rows.received, row = s.H * s.b;
  const int64_t of_x = s.keeps_all() ? 0 : (s.Ep == 1 ? sent : received) * row + 4 * received;
  const int64_t held = of_x + (s.keeps_all() ? 0 : order_bytes(s, rows)) + 4 * received;
  const int64_t tile = tile_of(s, rows) * interior_of_row(s);
  if (s.Ep == 1) return {held + sent * row, tile};
  const int64_t moving = held + std::max(2 * received, received + sent) * row;
  const int64_t working = held + received * row;
  return moving > working + tile ? Bytes{moving, 0} : Bytes{working, tile};
}

// ops/moe_dispatch/pipelined.h, and chunks_in_turn.h for a group of one.
Bytes chunked(const Sizes& s, const RoutedRows& rows, bool backward) {
  const int64_t row = s.H * s.b, sent = rows.chunk_sent;
  const int64_t interior = interior_of_row(s);
  if (s.Ep == 1) {
    return {sent * ((backward ? 2 : 1) * row + 24), interior * std::min(rows.tile, sent)};
  }
  Bytes bytes;
  const int64_t packed = row + kPackedBytes;
  bytes.dispatch = 2 * rows.slot * packed + 48 * sent;
  bytes.dispatch +=
      backward ? 2 * std::max(rows.slot * row, sent * packed) + sent * (row / 2 + 16) : 2 * sent * packed;
  bytes.expert = rows.tile * ((backward ? 2 : 1) * row + interior + (backward ? 8 : 4));
  return bytes;
}

Bytes pass_of(const Sizes& s, const RoutedRows& rows, bool backward) {
  if (rows.num_chunks > 1) return chunked(s, rows, backward);
  return backward ? one_shot_backward(s, rows) : one_shot_forward(s, rows);
}

void add_pass(const Sizes& s, bool backward, Terms& terms) {
  const auto expected = pass_of(s, s.expected, backward), guaranteed = pass_of(s, s.guaranteed, backward);
  const bool chunks = s.expected.num_chunks > 1;
  terms.add("rows to and from experts",
            chunks ? (backward ? "4 slots·R·H·b + k·c·H·b/2" : "2 slots·R·H·b + 2k·c·H·b")
                   : (backward ? "3R·H·b" : "2R·H·b"),
            Category::kDispatch, expected.dispatch, guaranteed.dispatch);
  terms.add("expert tile", chunks ? "T·(H+3I)·b" : "3T·I·b", Category::kExpert, expected.expert,
            guaranteed.expert);
  if (s.as_cuda && !s.fp32())
    terms.add("ends of the experts' rows", "4·E/E_p", Category::kExpert, 4 * (s.E / s.Ep));
  terms.add("weights of foreign experts", "helped·3H·I·b", Category::kGathered,
            s.expected.helped * expert_weights(s) * s.b, s.guaranteed.helped * expert_weights(s) * s.b);
  if (!backward) return;
  terms.add("gradients of foreign experts", "g·helped·3H·I", Category::kGrads,
            s.g * s.expected.helped * expert_weights(s), s.g * s.guaranteed.helped * expert_weights(s));
  if (s.b < s.g) {
    terms.add("product of a weight gradient", "2I·H·b", Category::kGrads, 2 * s.I * s.H * s.b);
  }
}

}  // namespace

void add_dispatch_forward(const Sizes& s, Terms& terms) {
  add_pass(s, /*backward=*/false, terms);
}
void add_dispatch_backward(const Sizes& s, Terms& terms) {
  add_pass(s, /*backward=*/true, terms);
}

int64_t kept_by_layer(const Sizes& s, int64_t layer, const RoutedRows& rows) {
  std::vector<Term> attention;
  Terms terms(attention);
  add_attention_saved(s, terms);
  int64_t bytes = 0;
  for (const auto& term : attention) bytes += term.expected;
  bytes += 2 * s.n * s.H * s.b + 4 * s.n;  // after attention, normalized
  const auto& m = s.shape.model;
  if (m.is_dense_layer(layer)) return bytes + 2 * s.n * m.intermediate_size * s.b;
  bytes += 4 * s.n * (s.E + (s.step.router_z_coeff > 0 ? 1 : 0)) +
           2 * s.n * m.shared_expert_intermediate_size * s.b;
  if (rows.num_chunks > 1) return bytes + rows.received * 2 * s.I * s.b;  // chunks keep gate and up alone
  return bytes + rows.received * ((s.H + 2 * s.I) * s.b + 4) + (rows.moves ? 20 : 8) * s.n * s.k;
}

}  // namespace steppe::plan
