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
Inputs run_both(const OpContext& context, const Inputs& in, bool keep) {
  auto out = copy_of(in);
  at::Tensor kept;
  feed_forward_forward(context, out.y_NH, out.x_NH, out.weights, keep ? &kept : nullptr);
  feed_forward_backward(context, {out.dx_NH, out.dy_NH, out.x_NH, out.weights, out.grads, kept});
  return out;
}

// As in expert_mlp's test: roundings on the way to the working dtype, and sums of `length` terms in fp32.
double bound(at::ScalarType dtype, int64_t length) {
  return 6 * kernels::unit_roundoff(dtype) + static_cast<double>(length + 8) * 0x1p-24;
}

TEST(FeedForward, AgreesWithTheOracle) {
  for (const auto dtype : kDtypes)
    for (const auto& sizes : kSizes)
      for (const bool keep : {false, true}) {
        SCOPED_TRACE(fmt::format("{} tokens, hidden {}, intermediate {}, kept {}", sizes.tokens, sizes.hidden,
                                 sizes.intermediate, keep));
        const auto in = make_inputs(sizes, dtype);
        const auto want =
            feed_forward_reference(in.x_NH, in.weights.gate_up_2IH, in.weights.down_HI, in.dy_NH);
        Counters counters;
        const auto got = run_both({at::kCPU, dtype, &counters}, in, keep);
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
  for (const bool keep : {false, true}) {
    Counters counters;
    run_both({at::kCPU, at::kFloat, &counters}, make_inputs({17, 21, 13}, at::kFloat), keep);
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

void expect_three_interiors(const Inputs& in, const Sizes& sizes, bool keep) {
  auto& ledger = memory::current_ledger();
  const int64_t size = in.x_NH.element_size(), interior = sizes.tokens * sizes.intermediate * size;
  Counters counters;
  const OpContext context{in.x_NH.device(), in.x_NH.scalar_type(), &counters};
  at::Tensor kept;
  ASSERT_EQ(bytes_of(ledger.live_by_category(), Category::kFfn), 0);
  ledger.reset_peak();
  feed_forward_forward(context, in.y_NH, in.x_NH, in.weights, keep ? &kept : nullptr);
  EXPECT_EQ(bytes_of(ledger.peak_by_own_category(), Category::kFfn), 3 * interior);
  EXPECT_EQ(bytes_of(ledger.live_by_category(), Category::kFfn), keep ? 2 * interior : 0);
  ledger.reset_peak();
  feed_forward_backward(context, {in.dx_NH, in.dy_NH, in.x_NH, in.weights, in.grads, kept});
  EXPECT_EQ(bytes_of(ledger.peak_by_own_category(), Category::kFfn), 3 * interior);
  EXPECT_EQ(bytes_of(ledger.peak_by_own_category(), Category::kGrads),
            size == 4 ? 0 : 2 * sizes.intermediate * sizes.hidden * size);
  kept.reset();
  EXPECT_EQ(bytes_of(ledger.live_by_category(), Category::kFfn), 0);
  EXPECT_EQ(bytes_of(ledger.live_by_category(), Category::kGrads), 0);
}

// bf16 on `meta`: on a CPU the library that multiplies bf16 takes scratch of its own.
TEST(FeedForward, TakesThreeInteriorsOfWhichTwoAreKept) {
  const Sizes sizes{17, 21, 13};
  for (const bool keep : {false, true}) {
    expect_three_interiors(make_inputs(sizes, at::kFloat), sizes, keep);
    expect_three_interiors(on_meta(make_inputs(sizes, at::kFloat)), sizes, keep);
    expect_three_interiors(on_meta(make_inputs(sizes, at::kBFloat16)), sizes, keep);
  }
}

std::vector<memory::Event> events_of(const Inputs& in, bool keep) {
  Counters counters;
  const OpContext context{in.x_NH.device(), in.x_NH.scalar_type(), &counters};
  auto& ledger = memory::current_ledger();
  const int64_t before = ledger.live_bytes();
  ledger.start_timeline();
  run_both(context, in, keep);
  auto events = ledger.stop_timeline().events;
  for (auto& event : events) event.live_bytes -= before;
  return events;
}

TEST(FeedForward, AllocatesOnMetaWhatItAllocatesOnTheCpu) {
  for (const auto& sizes : kSizes)
    for (const bool keep : {false, true}) {
      const auto in = make_inputs(sizes, at::kFloat);
      const auto want = events_of(in, keep);
      EXPECT_FALSE(want.empty());
      EXPECT_TRUE(events_of(on_meta(in), keep) == want);
    }
}

}  // namespace
}  // namespace steppe::ops
