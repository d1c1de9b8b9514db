// What the tests of dispatch share: a layer's tokens over all ranks, and a pass over one rank's part of them.
#pragma once

#include <ATen/ATen.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <string_view>
#include <utility>
#include <vector>

#include "steppe/comm/test_world.h"
#include "steppe/ops/moe_dispatch/moe_dispatch.h"

namespace steppe::ops {

inline constexpr int kDegrees[] = {1, 2, 3, 4};
inline constexpr int64_t kExperts = 24, kTopK = 3, kHidden = 21, kIntermediate = 11;

enum class Routes { kRandom, kPowerLaw, kOneExpertEmpty, kAllToOne, kListedTwice, kOneRankOnly };
inline constexpr std::array kAllRoutes = {Routes::kRandom,   Routes::kPowerLaw,    Routes::kOneExpertEmpty,
                                          Routes::kAllToOne, Routes::kListedTwice, Routes::kOneRankOnly};

inline at::Tensor make_ids(Routes routes, int64_t tokens) {
  const auto distinct =
      at::rand({tokens, kExperts}).argsort(int64_t{1}).narrow(1, 0, kTopK).to(at::kInt).contiguous();
  switch (routes) {
    case Routes::kRandom:
      return distinct;
    case Routes::kPowerLaw:
      return (at::rand({tokens, kTopK}).pow(4) * kExperts).floor().to(at::kInt);
    case Routes::kOneExpertEmpty:  // expert 7 has none
      return distinct.masked_fill(distinct.eq(7), 2);
    case Routes::kAllToOne:
      return at::full({tokens, kTopK}, 5, at::kInt);
    case Routes::kListedTwice:
      distinct.select(1, 2).copy_(distinct.select(1, 0));
      return distinct;
    case Routes::kOneRankOnly:  // the last rank's experts: the others receive nothing
      return distinct.remainder(3).add_(kExperts - 3).to(at::kInt);
  }
  return {};
}

// Over all ranks; a rank has tokens_of_rank[rank] consecutive tokens.
struct MoeLayer {
  std::vector<int64_t> tokens_of_rank;
  at::Tensor x_NH, ids_Nk, weights_Nk, dy_NH;
  at::Tensor residual_NH;  // what y holds before
  ExpertWeights weights;
};

inline MoeLayer make_layer(const std::vector<int64_t>& tokens_of_rank, Routes routes, at::ScalarType dtype) {
  at::manual_seed(17 + static_cast<uint64_t>(routes));
  const int64_t tokens = std::accumulate(tokens_of_rank.begin(), tokens_of_rank.end(), int64_t{0});
  const auto rows = [&] { return at::randn({tokens, kHidden}).to(dtype); };
  return {tokens_of_rank,
          rows(),
          make_ids(routes, tokens),
          at::rand({tokens, kTopK}),
          rows(),
          rows(),
          {(at::randn({kExperts, 2 * kIntermediate, kHidden}) / std::sqrt(kHidden)).to(dtype),
           (at::randn({kExperts, kHidden, kIntermediate}) / std::sqrt(kIntermediate)).to(dtype)}};
}

// Experts with biases and the clamped form, which some values reach.
inline MoeLayer biased(MoeLayer layer) {
  auto& weights = layer.weights;
  weights.gate_up_bias_E2I = at::randn({kExperts, 2 * kIntermediate}).mul_(3).to(layer.x_NH.scalar_type());
  weights.down_bias_EH = at::randn({kExperts, kHidden}).to(layer.x_NH.scalar_type());
  weights.form = kernels::kClampedSwiglu;
  return layer;
}

inline std::vector<int64_t> uneven_tokens(int degree) {
  const std::vector<int64_t> tokens{9, 0, 14, 5, 3, 11, 1, 7};
  return {tokens.begin(), tokens.begin() + degree};
}

inline at::Tensor rows_of_rank(const MoeLayer& layer, const at::Tensor& rows, int rank) {
  const auto first = layer.tokens_of_rank.begin();
  return rows.narrow(0, std::accumulate(first, first + rank, int64_t{0}), layer.tokens_of_rank[rank]);
}

// [E, …] → this rank's experts.
inline at::Tensor experts_of_rank(const at::Tensor& experts, int rank, int degree) {
  const int64_t local = experts.size(0) / degree;
  return experts.narrow(0, rank * local, local);
}

// A rank's own copies, on a device.
struct RankPart {
  at::Tensor x_NH, dy_NH, y_NH, dx_NH;
  PinnedRouting routing;
  ExpertWeights weights;
  DispatchGradients grads;
};

inline RankPart part_of(const MoeLayer& layer, comm::Communicator& group, at::DeviceType device,
                        double grads_start = 0) {
  const int rank = group.rank(), degree = group.size();
  const auto own = [&](const at::Tensor& rows) { return rows_of_rank(layer, rows, rank).clone().to(device); };
  RankPart part{own(layer.x_NH),
                own(layer.dy_NH),
                own(layer.residual_NH),
                own(at::full_like(layer.x_NH, 99)),
                {own(layer.ids_Nk), own(layer.weights_Nk), {}},
                {},
                {}};
  std::vector<int64_t> counts(kExperts, 0);
  const auto ids = rows_of_rank(layer, layer.ids_Nk, rank);
  for (int64_t i = 0; i < ids.numel(); ++i) ++counts[ids.data_ptr<int32_t>()[i]];
  part.routing.counts = exchange_route_counts(group, counts);
  const auto experts = [&](const at::Tensor& all) {
    return all.defined() ? experts_of_rank(all, rank, degree).to(device) : all;
  };
  const auto& w = layer.weights;
  part.weights = {experts(w.gate_up_E2IH), experts(w.down_EHI), experts(w.gate_up_bias_E2I),
                  experts(w.down_bias_EH), w.form};
  const auto accumulator = [&](const at::Tensor& weight) {
    return weight.defined() ? at::full(weight.sizes(), grads_start, weight.options().dtype(at::kFloat))
                            : weight;
  };
  part.grads = {part.dx_NH,
                at::full(part.routing.weights_Nk.sizes(), 99, part.routing.weights_Nk.options()),
                {accumulator(part.weights.gate_up_E2IH), accumulator(part.weights.down_EHI),
                 accumulator(part.weights.gate_up_bias_E2I), accumulator(part.weights.down_bias_EH)}};
  return part;
}

struct Variant {
  int64_t tile_rows = 0;
  bool keep = false;
};
inline constexpr std::array kVariants = {Variant{0, false}, Variant{0, true}, Variant{4, false},
                                         Variant{4, true}};

inline OpContext context_of(const RankPart& part, Counters& counters) {
  return {part.x_NH.device(), part.x_NH.scalar_type(), &counters};
}

inline void run_forward(const OpContext& context, comm::Communicator& group, RankPart& part,
                        const Variant& variant, DispatchSaved& saved) {
  dispatch_forward({context, group, part.routing, part.weights, {variant.tile_rows}}, part.y_NH, part.x_NH,
                   variant.keep ? &saved : nullptr);
}

inline void run_backward(const OpContext& context, comm::Communicator& group, RankPart& part,
                         const Variant& variant, DispatchSaved& saved) {
  dispatch_backward({context, group, part.routing, part.weights, {variant.tile_rows}}, part.grads, part.dy_NH,
                    part.x_NH, variant.keep ? &saved : nullptr);
}

inline void run_both(const OpContext& context, comm::Communicator& group, RankPart& part,
                     const Variant& variant) {
  DispatchSaved saved;
  run_forward(context, group, part, variant, saved);
  run_backward(context, group, part, variant, saved);
}

}  // namespace steppe::ops
