#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <vector>

#include "steppe/kernels/compare_test.h"
#include "steppe/ops/moe_dispatch/moe_dispatch.h"
#include "steppe/ops/moe_dispatch/moe_dispatch_reference.h"
#include "steppe/ops/moe_dispatch/moe_layer_test.h"

namespace steppe::ops {
namespace {

MoeReference reference_of(const MoeLayer& layer) {
  return moe_dispatch_reference({layer.x_NH, layer.ids_Nk, layer.weights_Nk, layer.weights.gate_up_E2IH,
                                 layer.weights.down_EHI, layer.dy_NH});
}

// Relative to the largest value. Roundings to the working dtype: gate and up (which enter twice), the
// activation and its gradient, the expert's result, the sum over a token's routes, a weight gradient's
// product. Products add up `length` terms in fp32, and the exponential is right to a few units.
double bound(at::ScalarType dtype, int64_t length) {
  return 7 * kernels::unit_roundoff(dtype) + static_cast<double>(length + kTopK + 8) * 0x1p-24;
}

constexpr double kGradsStart = 0.5;

void expect_agreement(const MoeLayer& layer, const MoeReference& want, const RankPart& got, int rank,
                      int degree) {
  const auto dtype = layer.x_NH.scalar_type();
  const int64_t routes = layer.ids_Nk.numel();
  const auto rows = [&](const at::Tensor& all) { return rows_of_rank(layer, all, rank); };
  EXPECT_LE(kernels::relative_error(got.y_NH, rows(layer.residual_NH.to(at::kDouble) + want.y_NH)),
            bound(dtype, kHidden + kIntermediate));
  EXPECT_LE(kernels::relative_error(got.dx_NH, rows(want.dx_NH)),
            bound(dtype, 2 * kHidden + 2 * kIntermediate));
  EXPECT_LE(kernels::relative_error(got.grads.dweights_Nk, rows(want.dweights_Nk)),
            bound(dtype, 2 * kHidden + kIntermediate));
  EXPECT_LE(kernels::relative_error(got.grads.experts.gate_up_E2IH,
                                    experts_of_rank(want.dgate_up_E2IH, rank, degree) + kGradsStart),
            bound(dtype, 2 * kHidden + routes));
  EXPECT_LE(kernels::relative_error(got.grads.experts.down_EHI,
                                    experts_of_rank(want.ddown_EHI, rank, degree) + kGradsStart),
            bound(dtype, 2 * kHidden + routes));
}

void expect_agreement_on_all_ranks(const std::vector<MoeLayer>& layers, int degree) {
  std::vector<MoeReference> want;
  for (const auto& layer : layers) want.push_back(reference_of(layer));
  comm::run_ranks(degree, [&](int rank, const auto& store) {
    const auto group = comm::make_world(rank, degree, store);
    for (size_t i = 0; i < layers.size(); ++i)
      for (const auto& variant : kVariants) {
        SCOPED_TRACE(fmt::format("layer {}, rank {} of {}, tiles of {}, kept {}", i, rank, degree,
                                 variant.tile_rows, variant.keep));
        auto part = part_of(layers[i], *group, at::kCPU, kGradsStart);
        Counters counters;
        run_both(context_of(part, counters), *group, part, variant);
        expect_agreement(layers[i], want[i], part, rank, degree);
      }
  });
}

TEST(Ep, AgreesWithTheOracleOnAnyNumberOfRanks) {
  for (const int degree : kDegrees) {
    std::vector<MoeLayer> layers;
    for (const auto routes : kAllRoutes)
      layers.push_back(make_layer(uneven_tokens(degree), routes, at::kFloat));
    layers.push_back(make_layer(std::vector<int64_t>(degree, 0), Routes::kRandom, at::kFloat));
    expect_agreement_on_all_ranks(layers, degree);
  }
}

TEST(Ep, AgreesWithTheOracleInBf16) {
  for (const int degree : {1, 3})
    expect_agreement_on_all_ranks({make_layer(uneven_tokens(degree), Routes::kListedTwice, at::kBFloat16)},
                                  degree);
}

TEST(Ep, RepeatsBitForBit) {
  for (const int degree : kDegrees) {
    const auto layer = make_layer(uneven_tokens(degree), Routes::kPowerLaw, at::kFloat);
    comm::run_ranks(degree, [&](int rank, const auto& store) {
      const auto group = comm::make_world(rank, degree, store);
      for (const auto& variant : kVariants) {
        auto once = part_of(layer, *group, at::kCPU), again = part_of(layer, *group, at::kCPU);
        Counters counters;
        run_both(context_of(once, counters), *group, once, variant);
        run_both(context_of(again, counters), *group, again, variant);
        EXPECT_TRUE(at::equal(once.y_NH, again.y_NH));
        EXPECT_TRUE(at::equal(once.dx_NH, again.dx_NH));
        EXPECT_TRUE(at::equal(once.grads.dweights_Nk, again.grads.dweights_Nk));
        EXPECT_TRUE(at::equal(once.grads.experts.gate_up_E2IH, again.grads.experts.gate_up_E2IH));
        EXPECT_TRUE(at::equal(once.grads.experts.down_EHI, again.grads.experts.down_EHI));
      }
    });
  }
}

TEST(Ep, KnowsEveryRanksCounts) {
  for (const int degree : kDegrees)
    comm::run_ranks(degree, [&](int rank, const auto& store) {
      const auto group = comm::make_world(rank, degree, store);
      std::vector<int64_t> mine(kExperts);
      for (int64_t e = 0; e < kExperts; ++e) mine[e] = rank * 100 + e;
      const auto counts = exchange_route_counts(*group, mine);
      EXPECT_EQ(counts.num_experts, kExperts);
      for (int64_t source = 0; source < degree; ++source)
        for (int64_t e = 0; e < kExperts; ++e) EXPECT_EQ(counts.from_to(source, e), source * 100 + e);
      EXPECT_EQ(group->wire_bytes(), (degree - 1) * kExperts * 8);
    });
}

}  // namespace
}  // namespace steppe::ops
