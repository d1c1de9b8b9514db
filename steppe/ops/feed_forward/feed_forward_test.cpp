#include "steppe/ops/feed_forward/feed_forward.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "steppe/kernels/compare_test.h"
#include "steppe/memory/scope.h"
#include "steppe/ops/feed_forward/feed_forward_reference.h"

namespace steppe::ops {
namespace {

using memory::Category;

constexpr at::ScalarType kDtypes[] = {at::kFloat, at::kBFloat16};

struct Sizes {
  int64_t tokens, hidden, intermediate;
};
const std::vector<Sizes> kSizes = {{0, 8, 4}, {1, 1, 1}, {17, 21, 13}, {5, 16, 40}, {40, 33, 7}};

struct Variant {
  bool keep;
  int64_t tile_tokens;
};
constexpr Variant kVariants[] = {{false, 0}, {true, 0}, {false, 1}, {false, 4}, {true, 4}, {false, 16}};

struct Inputs {
  at::Tensor x_NH, y_NH, dx_NH, dy_NH;  // y and dx: what is there before
  FeedForwardWeights weights, grads;
};

Inputs make_inputs(const Sizes& sizes, at::ScalarType dtype) {
  at::manual_seed(static_cast<uint64_t>(sizes.tokens * 100 + sizes.hidden));
  const auto rows = [&] { return at::randn({sizes.tokens, sizes.hidden}).to(dtype); };
  const std::vector<int64_t> gate_up_sizes{2 * sizes.intermediate, sizes.hidden};
  const std::vector<int64_t> down_sizes{sizes.hidden, sizes.intermediate};
  return {rows(),
          rows(),
          rows(),
          rows(),
          {(at::randn(gate_up_sizes) / std::sqrt(sizes.hidden)).to(dtype),
           (at::randn(down_sizes) / std::sqrt(sizes.intermediate)).to(dtype)},
          {at::randn(gate_up_sizes), at::randn(down_sizes)}};
}

Inputs copy_of(const Inputs& in) {
  return {in.x_NH,  in.y_NH.clone(), in.dx_NH.clone(),
          in.dy_NH, in.weights,      {in.grads.gate_up_2IH.clone(), in.grads.down_HI.clone()}};
}

// Writes its results into a copy of `in`.
Inputs run_both(const OpContext& context, const Inputs& in, bool keep, int64_t tile_tokens = 0) {
  auto out = copy_of(in);
  at::Tensor kept;
  feed_forward_forward(context, out.y_NH, out.x_NH, out.weights, keep ? &kept : nullptr, tile_tokens);
  feed_forward_backward(context, {out.dx_NH, out.dy_NH, out.x_NH, out.weights, out.grads, kept, tile_tokens});
  return out;
}

// As in expert_mlp's test: roundings on the way to the working dtype, and sums of `length` terms in fp32.
double bound(at::ScalarType dtype, int64_t length) {
  return 6 * kernels::unit_roundoff(dtype) + static_cast<double>(length + 8) * 0x1p-24;
}

TEST(FeedForward, AgreesWithTheOracle) {
  for (const auto dtype : kDtypes)
    for (const auto& sizes : kSizes)
      for (const auto& [keep, tile] : kVariants) {
        SCOPED_TRACE(fmt::format("{} tokens, hidden {}, intermediate {}, kept {}, tile {}", sizes.tokens,
                                 sizes.hidden, sizes.intermediate, keep, tile));
        const auto in = make_inputs(sizes, dtype);
        const auto want =
            feed_forward_reference(in.x_NH, in.weights.gate_up_2IH, in.weights.down_HI, in.dy_NH);
        Counters counters;
        const auto got = run_both({at::kCPU, dtype, &counters}, in, keep, tile);
        const auto [n, h, i] = sizes;
        const auto close = [&](const at::Tensor& result, const at::Tensor& start, const at::Tensor& change,
                               int64_t length) {
          return kernels::relative_error(result, start.to(at::kDouble) + change) <= bound(dtype, length);
        };
        EXPECT_TRUE(close(got.y_NH, in.y_NH, want.y_NH, h + i));
        EXPECT_TRUE(close(got.dx_NH, in.dx_NH, want.dx_NH, 2 * h + 2 * i));
        EXPECT_TRUE(close(got.grads.gate_up_2IH, in.grads.gate_up_2IH, want.dgate_up_2IH, 2 * h + n));
        EXPECT_TRUE(close(got.grads.down_HI, in.grads.down_HI, want.ddown_HI, 2 * h + n));
      }
}

TEST(FeedForward, RepeatsBitForBit) {
  for (const auto dtype : kDtypes)
    for (const bool keep : {false, true}) {
      const auto in = make_inputs({17, 21, 13}, dtype);
      Counters counters;
      const OpContext context{at::kCPU, dtype, &counters};
      const auto once = run_both(context, in, keep), again = run_both(context, in, keep);
      EXPECT_TRUE(at::equal(once.y_NH, again.y_NH));
      EXPECT_TRUE(at::equal(once.dx_NH, again.dx_NH));
      EXPECT_TRUE(at::equal(once.grads.gate_up_2IH, again.grads.gate_up_2IH));
      EXPECT_TRUE(at::equal(once.grads.down_HI, again.grads.down_HI));
    }
}

TEST(FeedForward, CountsItsProducts) {
  const int64_t unit = 2 * 17 * 21 * 13;
  for (const auto& [keep, tile] : kVariants) {
    Counters counters;
    run_both({at::kCPU, at::kFloat, &counters}, make_inputs({17, 21, 13}, at::kFloat), keep, tile);
    EXPECT_EQ(counters.flops[FlopKind::kDense], (3 + 6 + (keep ? 0 : 2)) * unit);
    EXPECT_EQ(counters.flops.sum(), counters.flops[FlopKind::kDense]);
  }
}

int64_t bytes_of(const memory::BytesByCategory& bytes, Category category) {
  return bytes[static_cast<size_t>(category)];
}

Inputs on_meta(Inputs in) {
  for (auto* tensor : {&in.x_NH, &in.y_NH, &in.dx_NH, &in.dy_NH, &in.weights.gate_up_2IH, &in.weights.down_HI,
                       &in.grads.gate_up_2IH, &in.grads.down_HI})
    *tensor = tensor->to(at::kMeta);
  return in;
}

// Three interiors of a tile; with `keep`, two of all tokens instead of two of the tile's.
void expect_interiors(const Inputs& in, const Sizes& sizes, const Variant& variant, int64_t tile) {
  auto& ledger = memory::current_ledger();
  const int64_t size = in.x_NH.element_size(), row = sizes.intermediate * size;
  const int64_t forward = ((variant.keep ? 2 * sizes.tokens : 2 * tile) + tile) * row;
  Counters counters;
  const OpContext context{in.x_NH.device(), in.x_NH.scalar_type(), &counters};
  at::Tensor kept;
  ASSERT_EQ(bytes_of(ledger.live_by_category(), Category::kFfn), 0);
  ledger.reset_peak();
  feed_forward_forward(context, in.y_NH, in.x_NH, in.weights, variant.keep ? &kept : nullptr,
                       variant.tile_tokens);
  EXPECT_EQ(bytes_of(ledger.peak_by_own_category(), Category::kFfn), forward);
  EXPECT_EQ(bytes_of(ledger.live_by_category(), Category::kFfn), variant.keep ? 2 * sizes.tokens * row : 0);
  ledger.reset_peak();
  feed_forward_backward(context,
                        {in.dx_NH, in.dy_NH, in.x_NH, in.weights, in.grads, kept, variant.tile_tokens});
  EXPECT_EQ(bytes_of(ledger.peak_by_own_category(), Category::kFfn), forward);
  EXPECT_EQ(bytes_of(ledger.peak_by_own_category(), Category::kGrads),
            size == 4 ? 0 : 2 * sizes.intermediate * sizes.hidden * size);
  kept.reset();
  EXPECT_EQ(bytes_of(ledger.live_by_category(), Category::kFfn), 0);
  EXPECT_EQ(bytes_of(ledger.live_by_category(), Category::kGrads), 0);
}

// bf16 on `meta`: on a CPU the library that multiplies bf16 takes scratch of its own.
TEST(FeedForward, TakesThreeInteriorsOfATile) {
  const Sizes sizes{17, 21, 13};
  // 17 tokens in tiles of at most 4 are five, of at most 16 two.
  const std::pair<int64_t, int64_t> tiles[] = {{0, 17}, {1, 1}, {4, 4}, {16, 9}, {17, 17}, {100, 17}};
  for (const auto& [asked, tile] : tiles)
    for (const bool keep : {false, true}) {
      SCOPED_TRACE(fmt::format("tile {}, kept {}", asked, keep));
      const Variant variant{keep, asked};
      expect_interiors(make_inputs(sizes, at::kFloat), sizes, variant, tile);
      expect_interiors(on_meta(make_inputs(sizes, at::kFloat)), sizes, variant, tile);
      expect_interiors(on_meta(make_inputs(sizes, at::kBFloat16)), sizes, variant, tile);
    }
}

// A layer whose interior would be 4.5 GB at 16K tokens.
TEST(FeedForward, StaysWithinItsBytesWhereNobodySaysHowManyTokens) {
  const Sizes sizes{16384, 7168, 18432};
  const auto rows =
      at::empty({sizes.tokens, sizes.hidden}, at::TensorOptions(at::kMeta).dtype(at::kBFloat16));
  const FeedForwardWeights weights{at::empty({2 * sizes.intermediate, sizes.hidden}, rows.options()),
                                   at::empty({sizes.hidden, sizes.intermediate}, rows.options())};
  const FeedForwardWeights grads{weights.gate_up_2IH.to(at::kFloat), weights.down_HI.to(at::kFloat)};
  const int64_t tile = feed_forward_tile(sizes.tokens, sizes.intermediate, 2, 0);
  EXPECT_LE(3 * tile * sizes.intermediate * 2, kFeedForwardTileBytes);
  EXPECT_GT(3 * tile * sizes.intermediate * 2, kFeedForwardTileBytes * 3 / 4);
  expect_interiors({rows, rows, rows, rows, weights, grads}, sizes, {false, 0}, tile);
}

TEST(FeedForward, TilesAreEvenAndNoLargerThanAsked) {
  for (int64_t tokens = 1; tokens < 40; ++tokens) {
    for (int64_t asked = 1; asked < 45; ++asked) {
      const int64_t tile = feed_forward_tile(tokens, 8, 4, asked);
      EXPECT_LE(tile, asked);
      const int64_t num_tiles = (tokens + tile - 1) / tile;
      EXPECT_EQ(num_tiles, (tokens + asked - 1) / asked);  // no more of them than need be
    }
  }
  EXPECT_EQ(feed_forward_tile(0, 8, 4, 5), 0);
  EXPECT_EQ(feed_forward_tile(5, int64_t{1} << 40, 4, 0), 1);
}

std::vector<memory::Event> events_of(const Inputs& in, const Variant& variant) {
  Counters counters;
  const OpContext context{in.x_NH.device(), in.x_NH.scalar_type(), &counters};
  auto& ledger = memory::current_ledger();
  const int64_t before = ledger.live_bytes();
  ledger.start_timeline();
  run_both(context, in, variant.keep, variant.tile_tokens);
  auto events = ledger.stop_timeline().events;
  for (auto& event : events) event.live_bytes -= before;
  return events;
}

TEST(FeedForward, AllocatesOnMetaWhatItAllocatesOnTheCpu) {
  for (const auto& sizes : kSizes)
    for (const auto& variant : kVariants) {
      const auto in = make_inputs(sizes, at::kFloat);
      const auto want = events_of(in, variant);
      EXPECT_FALSE(want.empty());
      EXPECT_TRUE(events_of(on_meta(in), variant) == want);
    }
}

}  // namespace
}  // namespace steppe::ops
