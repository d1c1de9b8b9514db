// How far a kind of dispatch is from the oracle, on every rank.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <mutex>
#include <vector>

#include "steppe/kernels/compare_test.h"
#include "steppe/ops/moe_dispatch/kinds_test.h"
#include "steppe/ops/moe_dispatch/moe_dispatch_reference.h"

namespace steppe::ops {

inline MoeReference reference_of(const MoeLayer& layer) {
  const auto& w = layer.weights;
  return moe_dispatch_reference({layer.x_NH, layer.ids_Nk, layer.weights_Nk, w.gate_up_E2IH, w.down_EHI,
                                 layer.dy_NH, w.gate_up_bias_E2I, w.down_bias_EH,
                                 w.form == kernels::kClampedSwiglu});
}

// Relative to the largest value. Roundings to the working dtype: gate and up (which enter twice), the
// activation and its gradient, the expert's result, the sum over a token's routes, a weight gradient's
// product. Products add up `length` terms in fp32, and the exponential is right to a few units.
inline double error_bound(at::ScalarType dtype, int64_t length) {
  return 7 * kernels::unit_roundoff(dtype) + static_cast<double>(length + kTopK + 8) * 0x1p-24;
}

inline constexpr double kGradsStart = 0.5;

// The largest error over all tensors and ranks, relative to its tensor's largest value, and to its bound.
struct Agreement {
  double error = 0, share_of_bound = 0;
  void take(double e, double bound) {
    EXPECT_LE(e, bound);
    error = std::max(error, e), share_of_bound = std::max(share_of_bound, e / bound);
  }
};

inline Agreement agreement_of(const MoeLayer& layer, const MoeReference& want, const RankPart& got, int rank,
                              int degree) {
  const auto dtype = layer.x_NH.scalar_type();
  const int64_t routes = layer.ids_Nk.numel();
  Agreement agreement;
  // A rank's part, which may be a single token, relative to the largest value of all ranks.
  const auto compare = [&](const at::Tensor& is, const at::Tensor& part, const at::Tensor& all,
                           int64_t length) {
    const double size = all.numel() > 0 ? all.abs().max().item<double>() : 0;
    agreement.take(kernels::relative_error(is, part, size), error_bound(dtype, length));
  };
  const auto rows = [&](const at::Tensor& is, const at::Tensor& all, int64_t length) {
    compare(is, rows_of_rank(layer, all, rank), all, length);
  };
  const auto experts = [&](const at::Tensor& is, const at::Tensor& all) {
    compare(is, experts_of_rank(all, rank, degree) + kGradsStart, all, 2 * kHidden + routes);
  };
  rows(got.y_NH, layer.residual_NH.to(at::kDouble) + want.y_NH, kHidden + kIntermediate);
  rows(got.dx_NH, want.dx_NH, 2 * kHidden + 2 * kIntermediate);
  rows(got.grads.dweights_Nk, want.dweights_Nk, 2 * kHidden + kIntermediate);
  experts(got.grads.experts.gate_up_E2IH, want.dgate_up_E2IH);
  experts(got.grads.experts.down_EHI, want.ddown_EHI);
  if (!want.ddown_bias_EH.defined()) return agreement;
  experts(got.grads.experts.gate_up_bias_E2I, want.dgate_up_bias_E2I);
  experts(got.grads.experts.down_bias_EH, want.ddown_bias_EH);
  return agreement;
}

inline Agreement expect_agreement_on_all_ranks(const std::vector<MoeLayer>& layers, int degree,
                                               const std::vector<KindCase>& kinds) {
  std::vector<MoeReference> want;
  for (const auto& layer : layers) want.push_back(reference_of(layer));
  Agreement worst;
  std::mutex mutex;
  comm::run_ranks(degree, [&](int rank, const auto& store) {
    const auto group = comm::make_world(rank, degree, store);
    for (size_t i = 0; i < layers.size(); ++i)
      for (const auto& kind : kinds) {
        SCOPED_TRACE(fmt::format("layer {}, rank {} of {}, {}", i, rank, degree, kind.name));
        auto part = part_for(layers[i], *group, at::kCPU, kind, kGradsStart);
        Counters counters;
        run_kind(context_of(part, counters), *group, part, kind);
        const auto agreement = agreement_of(layers[i], want[i], part, rank, degree);
        const std::lock_guard lock(mutex);
        worst.error = std::max(worst.error, agreement.error);
        worst.share_of_bound = std::max(worst.share_of_bound, agreement.share_of_bound);
      }
  });
  return worst;
}

}  // namespace steppe::ops
