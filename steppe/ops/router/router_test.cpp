#include "steppe/ops/router/router.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "steppe/kernels/compare_test.h"
#include "steppe/memory/scope.h"
#include "steppe/ops/router/router_reference.h"

namespace steppe::ops {
namespace {

using memory::Category;

constexpr int64_t kCastTile = 1024;  // rows that are in fp32 at a time

struct Sizes {
  int64_t tokens, hidden, experts, top_k;
};
const std::vector<Sizes> kSizes = {
    {0, 8, 4, 2}, {1, 1, 1, 1}, {37, 21, 12, 3}, {9, 40, 64, 8}, {5, 16, 7, 7}};

struct Inputs {
  at::Tensor x_NH, weight_EH, ids_Nk, dweights_Nk;
  at::Tensor dx_NH, grad_weight_EH;  // what is there before
};

Inputs make_inputs(const Sizes& s, at::ScalarType dtype) {
  at::manual_seed(static_cast<uint64_t>(s.tokens * 10 + s.hidden));
  return {at::randn({s.tokens, s.hidden}).to(dtype),
          (at::randn({s.experts, s.hidden}) / std::sqrt(s.hidden)).to(dtype),
          at::rand({s.tokens, s.experts}).argsort(int64_t{1}).narrow(1, 0, s.top_k).to(at::kInt).contiguous(),
          at::randn({s.tokens, s.top_k}),
          at::randn({s.tokens, s.hidden}).to(dtype),
          at::randn({s.experts, s.hidden})};
}

struct Outputs {
  at::Tensor scores_NE, weights_Nk, dx_NH, grad_weight_EH;
};

Outputs run_both(const OpContext& context, const RouterConfig& config, const Inputs& in) {
  Outputs out{router_scores(context, in.x_NH, in.weight_EH).scores_NE,
              {},
              in.dx_NH.clone(),
              in.grad_weight_EH.clone()};
  out.weights_Nk = router_weights(context, config, out.scores_NE, in.ids_Nk);
  const auto consumed = out.scores_NE.clone();
  router_backward(context, config,
                  {out.dx_NH,
                   out.grad_weight_EH,
                   in.dweights_Nk,
                   out.weights_Nk,
                   {consumed},
                   in.ids_Nk,
                   in.x_NH,
                   in.weight_EH});
  return out;
}

// Relative to the largest value: sums of `length` terms in fp32, a few more operations (an exponential and a
// division are right to a few units), and the roundings of a result to its dtype.
double bound(int64_t length, double roundings, at::ScalarType dtype = at::kFloat) {
  return static_cast<double>(length + 16) * 0x1p-24 + roundings * kernels::unit_roundoff(dtype);
}

void expect_agreement(const Sizes& s, at::ScalarType dtype, bool normalize, const Inputs& in) {
  Counters counters;
  const auto want = router_reference({in.x_NH, in.weight_EH, in.ids_Nk, normalize, in.dweights_Nk});
  const auto got = run_both({at::kCPU, dtype, &counters}, {s.experts, s.top_k, normalize}, in);
  EXPECT_EQ(got.scores_NE.scalar_type(), at::kFloat);
  EXPECT_EQ(got.weights_Nk.scalar_type(), at::kFloat);
  EXPECT_LE(kernels::relative_error(got.scores_NE, want.scores_NE), bound(s.hidden + s.experts, 0));
  EXPECT_LE(kernels::relative_error(got.weights_Nk, want.weights_Nk), bound(s.hidden + s.experts, 0));
  EXPECT_LE(kernels::relative_error(got.dx_NH, in.dx_NH.to(at::kDouble) + want.dx_NH),
            bound(s.hidden + 2 * s.experts, 1, dtype));
  EXPECT_LE(kernels::relative_error(got.grad_weight_EH, in.grad_weight_EH.to(at::kDouble) + want.dweight_EH),
            bound(s.hidden + s.experts + s.tokens, 0));
}

TEST(Router, AgreesWithTheOracle) {
  for (const auto dtype : {at::kFloat, at::kBFloat16})
    for (const bool normalize : {true, false})
      for (const auto& sizes : kSizes) {
        SCOPED_TRACE(fmt::format("{} {} tokens, {} of {} experts, normalize {}", c10::toString(dtype),
                                 sizes.tokens, sizes.top_k, sizes.experts, normalize));
        auto in = make_inputs(sizes, dtype);
        expect_agreement(sizes, dtype, normalize, in);
        if (sizes.top_k < 2) continue;
        in.ids_Nk.select(1, 1).copy_(in.ids_Nk.select(1, 0));  // a replayed routing may list an expert twice
        expect_agreement(sizes, dtype, normalize, in);
      }
}

// Each loss alone and both, beside what comes from the experts.
TEST(Router, LossesAgreeWithTheOracle) {
  for (const auto dtype : {at::kFloat, at::kBFloat16})
    for (const bool balance : {true, false})
      for (const double z_coeff : {0.0, 0.125})
        for (const auto& s : kSizes) {
          SCOPED_TRACE(fmt::format("{} {} tokens, {} experts, balance {}, z {}", c10::toString(dtype),
                                   s.tokens, s.experts, balance, z_coeff));
          const auto in = make_inputs(s, dtype);
          RouterLosses losses{balance ? at::rand({s.experts}) : at::Tensor{}, z_coeff, at::full({1}, 0.5),
                              at::full({1}, 0.25, at::kDouble)};
          const auto want = router_reference(
              {in.x_NH, in.weight_EH, in.ids_Nk, true, in.dweights_Nk, losses.dscores_E, z_coeff});
          Counters counters;
          const OpContext context{at::kCPU, dtype, &counters};
          const RouterConfig config{s.experts, s.top_k, true};
          const auto scores = router_scores(context, in.x_NH, in.weight_EH, z_coeff != 0);
          const auto weights = router_weights(context, config, scores.scores_NE, in.ids_Nk);
          const auto dx = in.dx_NH.clone(), dweight = in.grad_weight_EH.clone();
          router_backward(
              context, config,
              {dx, dweight, in.dweights_Nk, weights, scores, in.ids_Nk, in.x_NH, in.weight_EH, losses});
          EXPECT_NEAR(losses.balance_1.item<double>(), 0.5 + want.balance, 1e-6 * (1 + want.balance));
          const double squares = z_coeff == 0 ? 0 : want.z / z_coeff;
          EXPECT_NEAR(losses.square_sum_1.item<double>(), 0.25 + squares, 2e-6 * (1 + squares));
          EXPECT_LE(kernels::relative_error(dx, in.dx_NH.to(at::kDouble) + want.dx_NH),
                    bound(s.hidden + 3 * s.experts, 1, dtype));
          EXPECT_LE(kernels::relative_error(dweight, in.grad_weight_EH.to(at::kDouble) + want.dweight_EH),
                    bound(s.hidden + 2 * s.experts + s.tokens, 0));
        }
}

TEST(Router, NormalizedWeightsSumToOne) {
  const Sizes sizes{300, 21, 12, 3};
  const auto in = make_inputs(sizes, at::kFloat);
  Counters counters;
  const auto weights = run_both({at::kCPU, at::kFloat, &counters}, {12, 3, true}, in).weights_Nk;
  EXPECT_LE((weights.to(at::kDouble).sum(1) - 1).abs().max().item<double>(), 3 * 0x1p-24);
  const auto raw = run_both({at::kCPU, at::kFloat, &counters}, {12, 3, false}, in);
  EXPECT_TRUE(at::equal(raw.weights_Nk, raw.scores_NE.gather(1, in.ids_Nk.to(at::kLong))));
  EXPECT_LT(raw.weights_Nk.sum(1).max().item<float>(), 0.99F);
}

// bf16 is cast to fp32 in tiles of rows; a cast loses nothing.
TEST(Router, TilesOfBf16GiveWhatOneGoGives) {
  for (const int64_t tokens : {kCastTile - 1, kCastTile, kCastTile + 1, 2 * kCastTile + 77}) {
    const Sizes sizes{tokens, 21, 12, 3};
    const auto narrow = make_inputs(sizes, at::kBFloat16);
    auto wide = narrow;
    for (auto* tensor : {&wide.x_NH, &wide.weight_EH, &wide.dx_NH}) *tensor = tensor->to(at::kFloat);
    Counters counters;
    const RouterConfig config{sizes.experts, sizes.top_k, true};
    const auto in_tiles = run_both({at::kCPU, at::kBFloat16, &counters}, config, narrow);
    const auto in_one_go = run_both({at::kCPU, at::kFloat, &counters}, config, wide);
    const auto error = [](const at::Tensor& a, const at::Tensor& b) {
      return kernels::relative_error(a, b.to(at::kDouble));
    };
    EXPECT_LE(error(in_tiles.scores_NE, in_one_go.scores_NE), bound(sizes.hidden, 0));
    EXPECT_LE(error(in_tiles.weights_Nk, in_one_go.weights_Nk), bound(sizes.hidden, 0));
    EXPECT_LE(error(in_tiles.dx_NH, in_one_go.dx_NH), bound(sizes.experts, 1, at::kBFloat16));
    EXPECT_LE(error(in_tiles.grad_weight_EH, in_one_go.grad_weight_EH), bound(tokens, 0));
  }
}

TEST(Router, RepeatsBitForBit) {
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    const Sizes sizes{1100, 21, 12, 3};
    const auto in = make_inputs(sizes, dtype);
    Counters counters;
    const OpContext context{at::kCPU, dtype, &counters};
    const auto once = run_both(context, {12, 3, true}, in), again = run_both(context, {12, 3, true}, in);
    EXPECT_TRUE(at::equal(once.scores_NE, again.scores_NE));
    EXPECT_TRUE(at::equal(once.weights_Nk, again.weights_Nk));
    EXPECT_TRUE(at::equal(once.dx_NH, again.dx_NH));
    EXPECT_TRUE(at::equal(once.grad_weight_EH, again.grad_weight_EH));
  }
}

TEST(Router, CountsThreeProducts) {
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    const Sizes sizes{1100, 21, 12, 3};
    Counters counters;
    run_both({at::kCPU, dtype, &counters}, {12, 3, true}, make_inputs(sizes, dtype));
    EXPECT_EQ(counters.flops[FlopKind::kRouter], 3 * 2 * 1100 * 21 * 12);
    EXPECT_EQ(counters.flops.sum(), counters.flops[FlopKind::kRouter]);
  }
}

int64_t routing_bytes(const memory::BytesByCategory& bytes) {
  return bytes[static_cast<size_t>(Category::kRouting)];
}

TEST(Router, TakesScoresAndWithBf16OneTileOfRowsInFp32) {
  auto& ledger = memory::current_ledger();
  for (const auto dtype : {at::kFloat, at::kBFloat16})
    for (const auto device : {at::kCPU, at::kMeta})
      for (const int64_t tokens : {300, 2500}) {
        auto in = make_inputs({tokens, 21, 12, 3}, dtype);
        for (auto* tensor :
             {&in.x_NH, &in.weight_EH, &in.ids_Nk, &in.dweights_Nk, &in.dx_NH, &in.grad_weight_EH})
          *tensor = tensor->to(device);
        const int64_t scores = tokens * 12 * 4, weights = tokens * 3 * 4;
        const int64_t tile = std::min(tokens, kCastTile) * 21 * 4, weight = 12 * 21 * 4;
        Counters counters;
        const OpContext context{device, dtype, &counters};
        const RouterConfig config{12, 3, true};
        ASSERT_EQ(routing_bytes(ledger.live_by_category()), 0);
        ledger.reset_peak();
        const auto scores_NE = router_scores(context, in.x_NH, in.weight_EH).scores_NE;
        EXPECT_EQ(routing_bytes(ledger.peak_by_own_category()),
                  scores + (dtype == at::kFloat ? 0 : tile + weight));
        const auto weights_Nk = router_weights(context, config, scores_NE, in.ids_Nk);
        EXPECT_EQ(routing_bytes(ledger.live_by_category()), scores + weights);
        ledger.reset_peak();
        router_backward(context, config,
                        {in.dx_NH,
                         in.grad_weight_EH,
                         in.dweights_Nk,
                         weights_Nk,
                         {scores_NE},
                         in.ids_Nk,
                         in.x_NH,
                         in.weight_EH});
        EXPECT_EQ(routing_bytes(ledger.peak_by_own_category()),
                  scores + weights + (dtype == at::kFloat ? 0 : tile + weight));
        EXPECT_EQ(routing_bytes(ledger.live_by_category()), scores + weights);
      }
}

}  // namespace
}  // namespace steppe::ops
