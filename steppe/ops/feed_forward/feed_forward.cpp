#include "steppe/ops/feed_forward/feed_forward.h"

#include <algorithm>

#include "steppe/base/error.h"
#include "steppe/kernels/swiglu.h"
#include "steppe/memory/scope.h"
#include "steppe/ops/product.h"

namespace steppe::ops {
namespace {

int64_t tile_of(const OpContext& context, const at::Tensor& x_NH, const FeedForwardWeights& weights,
                int64_t tile_tokens) {
  return feed_forward_tile(x_NH.size(0), weights.down_HI.size(1), context.itemsize(), tile_tokens);
}

// Calls body(first token, tokens) for each tile; once where there is no token, so that zero tokens allocate
// and multiply as any other number does.
template <class Body>
void for_each_tile(int64_t num_tokens, int64_t tile, const Body& body) {
  int64_t begin = 0;
  do {
    const int64_t count = std::min(tile, num_tokens - begin);
    body(begin, count);
    begin += count;
  } while (begin < num_tokens);
}

}  // namespace

int64_t feed_forward_tile(int64_t num_tokens, int64_t intermediate, int64_t itemsize, int64_t tile_tokens) {
  STEPPE_CHECK_VALUE(tile_tokens >= 0, "[feed_forward] tile_tokens must be at least 0, got {}", tile_tokens);
  if (num_tokens == 0) return 0;
  const int64_t wanted =
      tile_tokens > 0 ? tile_tokens : kFeedForwardTileBytes / (3 * intermediate * itemsize);
  const int64_t limit = std::clamp<int64_t>(wanted, 1, num_tokens);
  const int64_t num_tiles = (num_tokens + limit - 1) / limit;
  return (num_tokens + num_tiles - 1) / num_tiles;
}

void feed_forward_forward(const OpContext& context, const at::Tensor& y_NH, const at::Tensor& x_NH,
                          const FeedForwardWeights& weights, at::Tensor* keep_gate_up_N2I,
                          int64_t tile_tokens) {
  const memory::Scope scope(memory::Category::kFfn);
  const int64_t n = x_NH.size(0), two_i = weights.gate_up_2IH.size(0);
  const int64_t tile = tile_of(context, x_NH, weights, tile_tokens);
  const bool keep = keep_gate_up_N2I != nullptr;
  const auto gate_ups = context.empty({keep ? n : tile, two_i}), acts = context.empty({tile, two_i / 2});
  for_each_tile(n, tile, [&](int64_t begin, int64_t count) {
    const auto gate_up = gate_ups.narrow(0, keep ? begin : 0, count), act = acts.narrow(0, 0, count);
    product(context, FlopKind::kDense, gate_up, x_NH.narrow(0, begin, count), weights.gate_up_2IH.t());
    kernels::swiglu_forward(act, gate_up, {});
    product_add(context, FlopKind::kDense, y_NH.narrow(0, begin, count), act, weights.down_HI.t());
  });
  if (keep) *keep_gate_up_N2I = gate_ups;
}

void feed_forward_backward(const OpContext& context, const FeedForwardBackward& args) {
  const memory::Scope scope(memory::Category::kFfn);
  const int64_t n = args.x_NH.size(0), two_i = args.weights.gate_up_2IH.size(0);
  const int64_t tile = tile_of(context, args.x_NH, args.weights, args.tile_tokens);
  const bool kept = args.kept_gate_up_N2I.defined();
  const auto gate_ups = kept ? args.kept_gate_up_N2I : context.empty({tile, two_i});
  const auto acts = context.empty({tile, two_i / 2});
  for_each_tile(n, tile, [&](int64_t begin, int64_t count) {
    const auto gate_up = gate_ups.narrow(0, kept ? begin : 0, count), act = acts.narrow(0, 0, count);
    const auto x = args.x_NH.narrow(0, begin, count), dy = args.dy_NH.narrow(0, begin, count);
    if (!kept) product(context, FlopKind::kDense, gate_up, x, args.weights.gate_up_2IH.t());
    product(context, FlopKind::kDense, act, dy, args.weights.down_HI);
    kernels::swiglu_backward_inplace(gate_up, act, {}, {});
    product_accumulate(context, FlopKind::kDense, args.grads.down_HI, dy.t(), act);
    product_accumulate(context, FlopKind::kDense, args.grads.gate_up_2IH, gate_up.t(), x);
    product_add(context, FlopKind::kDense, args.dx_NH.narrow(0, begin, count), gate_up,
                args.weights.gate_up_2IH);
  });
}

}  // namespace steppe::ops
