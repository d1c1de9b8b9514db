// llep and pipelined_llep against the oracle: every sort of routing, any number of ranks, chunk counts,
// helpers.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <vector>

#include "steppe/kernels/compare_test.h"
#include "steppe/ops/moe_dispatch/kinds_test.h"
#include "steppe/ops/moe_dispatch/moe_dispatch_reference.h"

namespace steppe::ops {
namespace {

MoeReference reference_of(const MoeLayer& layer) {
  return moe_dispatch_reference({layer.x_NH, layer.ids_Nk, layer.weights_Nk, layer.weights.gate_up_E2IH,
                                 layer.weights.down_EHI, layer.dy_NH});
}

// As in the tests of `ep`.
double bound(at::ScalarType dtype, int64_t length) {
  return 7 * kernels::unit_roundoff(dtype) + static_cast<double>(length + kTopK + 8) * 0x1p-24;
}

constexpr double kGradsStart = 0.5;

void expect_agreement(const MoeLayer& layer, const MoeReference& want, const RankPart& got, int rank,
                      int degree) {
  const auto dtype = layer.x_NH.scalar_type();
  const int64_t length = 2 * kHidden + 2 * kIntermediate, routes = layer.ids_Nk.numel();
  const auto rows = [&](const at::Tensor& all) { return rows_of_rank(layer, all, rank); };
  const auto experts = [&](const at::Tensor& all) {
    return experts_of_rank(all, rank, degree) + kGradsStart;
  };
  EXPECT_LE(kernels::relative_error(got.y_NH, rows(layer.residual_NH.to(at::kDouble) + want.y_NH)),
            bound(dtype, length));
  EXPECT_LE(kernels::relative_error(got.dx_NH, rows(want.dx_NH)), bound(dtype, length));
  EXPECT_LE(kernels::relative_error(got.grads.dweights_Nk, rows(want.dweights_Nk)), bound(dtype, length));
  EXPECT_LE(kernels::relative_error(got.grads.experts.gate_up_E2IH, experts(want.dgate_up_E2IH)),
            bound(dtype, length + routes));
  EXPECT_LE(kernels::relative_error(got.grads.experts.down_EHI, experts(want.ddown_EHI)),
            bound(dtype, length + routes));
}

void expect_agreement_on_all_ranks(const std::vector<MoeLayer>& layers, int degree,
                                   const std::vector<KindCase>& kinds) {
  std::vector<MoeReference> want;
  for (const auto& layer : layers) want.push_back(reference_of(layer));
  comm::run_ranks(degree, [&](int rank, const auto& store) {
    const auto group = comm::make_world(rank, degree, store);
    for (size_t i = 0; i < layers.size(); ++i)
      for (const auto& kind : kinds) {
        SCOPED_TRACE(fmt::format("layer {}, rank {} of {}, {}", i, rank, degree, kind.name));
        auto part = part_for(layers[i], *group, at::kCPU, kind, kGradsStart);
        Counters counters;
        run_kind(context_of(part, counters), *group, part, kind);
        expect_agreement(layers[i], want[i], part, rank, degree);
      }
  });
}

TEST(DispatchKinds, AgreeWithTheOracleOnAnyNumberOfRanks) {
  for (const int degree : kDegrees) {
    std::vector<MoeLayer> layers;
    for (const auto routes : kAllRoutes)
      layers.push_back(make_layer(uneven_tokens(degree), routes, at::kFloat));
    layers.push_back(make_layer(std::vector<int64_t>(degree, 0), Routes::kRandom, at::kFloat));
    layers.push_back(stride_layer(degree));
    expect_agreement_on_all_ranks(layers, degree, all_kinds());
  }
}

TEST(DispatchKinds, AgreeWithTheOracleInBf16) {
  for (const int degree : {1, 3})
    expect_agreement_on_all_ranks({make_layer(uneven_tokens(degree), Routes::kPowerLaw, at::kBFloat16)},
                                  degree, all_kinds());
}

TEST(DispatchKinds, RepeatBitForBit) {
  for (const int degree : kDegrees) {
    const auto layer = make_layer(uneven_tokens(degree), Routes::kPowerLaw, at::kFloat);
    comm::run_ranks(degree, [&](int rank, const auto& store) {
      const auto group = comm::make_world(rank, degree, store);
      for (const auto& kind : all_kinds()) {
        SCOPED_TRACE(kind.name);
        auto once = part_for(layer, *group, at::kCPU, kind), again = part_for(layer, *group, at::kCPU, kind);
        Counters counters;
        run_kind(context_of(once, counters), *group, once, kind);
        run_kind(context_of(again, counters), *group, again, kind);
        EXPECT_TRUE(at::equal(once.y_NH, again.y_NH));
        EXPECT_TRUE(at::equal(once.dx_NH, again.dx_NH));
        EXPECT_TRUE(at::equal(once.grads.dweights_Nk, again.grads.dweights_Nk));
        EXPECT_TRUE(at::equal(once.grads.experts.gate_up_E2IH, again.grads.experts.gate_up_E2IH));
        EXPECT_TRUE(at::equal(once.grads.experts.down_EHI, again.grads.experts.down_EHI));
      }
    });
  }
}

}  // namespace
}  // namespace steppe::ops
