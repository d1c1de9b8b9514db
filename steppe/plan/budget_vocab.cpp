#include <algorithm>

#include "steppe/ops/vocab_loss/vocab_loss.h"
#include "steppe/plan/budget_sizes.h"

namespace steppe::plan {
namespace {

using memory::Category;
using ops::VocabLossKind;

struct VocabBytes {
  int64_t vocab = 0;
  const char* formula = "";
};

// Where weights of bf16 meet fp32 gradients, a product passes through bf16.
int64_t weight_product(const Sizes& s, int64_t rows) {
  return s.fp32() ? 0 : rows * s.H * s.b;
}

VocabBytes vocab_parallel(const Sizes& s) {
  const int64_t all = s.P * s.n, logits = all * s.vocab_rows * s.b, rows = all * s.H * s.b;
  if (s.P == 1) return {logits + 12 * all, "N·V·b"};
  // Statistics of all shards meet; then the products with the gradient of the logits; then rows go home.
  const int64_t meeting = logits + 12 * all * s.P, product = weight_product(s, s.vocab_rows);
  const int64_t working = 4 * all + std::max({logits + product, logits + rows, 2 * rows + 4 * s.n * s.H});
  return {rows + 16 * all + std::max(meeting, working) - product, "P·N·(V/P+2H)·b"};
}

VocabBytes full(const Sizes& s) {
  const int64_t logits = s.n * s.V * s.b + 12 * s.n;
  if (s.P == 1) return {logits, "N·V·b"};
  const int64_t sum = std::max(4 * s.P * s.vocab_rows * s.H, weight_product(s, s.V));
  return {s.V * s.H * s.b + logits + 4 * s.V * s.H + sum - weight_product(s, s.V), "N·V·b + V·H·(b+8)"};
}

VocabBytes ring(const Sizes& s, int64_t tile, ops::Circulate circulate) {
  const bool weights = circulate == ops::Circulate::kWeights;
  const int64_t travels = s.P > 2 ? 2 : s.P - 1, columns = (s.V + s.P - 1) / s.P;
  const int64_t num_tiles = (s.n + tile - 1) / tile;
  const int64_t rows = weights ? std::min(tile, s.n) : (s.n + num_tiles - 1) / num_tiles;
  const int64_t partial = s.fp32() ? 0 : rows * s.H * s.b;
  const int64_t bytes = rows * columns * s.b + 24 * rows + 12 * s.n + partial;
  if (weights)
    return {bytes + travels * columns * s.H * (s.b + 4) + (s.fp32() ? 0 : 4 * s.n * s.H),
            "n·V/P·b + 2V/P·H·(b+4) + 4N·H"};
  // The sum travels tile by tile, through a spare one.
  const int64_t sum_tiles = s.P > 1 ? num_tiles + 1 : s.fp32() ? 0 : num_tiles;
  return {bytes + travels * s.n * (s.H * s.b + 20) + sum_tiles * 4 * rows * s.H,
          "n·V/P·b + 2N·H·b + 4(N+n)·H"};
}

VocabBytes tiled(const Sizes& s, int64_t tile) {
  const int64_t own = std::min(tile, s.n), rows = s.P * own;
  const int64_t slots = std::min<int64_t>(2, (s.n + tile - 1) / tile);
  int64_t bytes = rows * (s.vocab_rows * s.b + 12 * s.P) + slots * rows * (s.H * s.b + 8);
  if (s.P == 1) return {bytes + own * s.H * s.b, "n·(V+3H)·b"};
  bytes += 12 * rows + rows * s.H * s.b + (s.P - 1) * own * s.H * s.b + 4 * own * s.H;
  if (!s.fp32()) bytes += own * s.H * s.b;
  return {bytes, "P·n·(V/P+4H)·b"};
}

}  // namespace

void add_vocab_loss(const Sizes& s, Terms& terms) {
  const ops::VocabLossShape shape{s.H, s.V, s.P, s.n, s.b};
  const auto resolved = ops::resolve_kind(s.step.loss, shape);
  const int64_t tile = ops::resolve_tile_tokens(resolved, shape);
  VocabBytes bytes;
  int64_t product_rows = s.vocab_rows;
  switch (resolved.kind) {
    case VocabLossKind::kVocabParallel:
      bytes = vocab_parallel(s);
      break;
    case VocabLossKind::kFull:
      bytes = full(s), product_rows = s.V;
      break;
    case VocabLossKind::kRing:
      bytes = ring(s, tile, resolved.circulate), product_rows = (s.V + s.P - 1) / s.P;
      break;
    case VocabLossKind::kTiled:
    case VocabLossKind::kAuto:
      bytes = tiled(s, tile);
      break;
  }
  terms.add("logits, their gathers and statistics", bytes.formula, Category::kVocab, bytes.vocab);
  terms.add("product of the weight gradient", "V/P·H·b", Category::kGrads, weight_product(s, product_rows));
}

}  // namespace steppe::plan
