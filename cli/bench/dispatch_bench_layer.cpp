#include "cli/bench/dispatch_bench_layer.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <algorithm>
#include <cmath>

#include "steppe/kernels/pointwise.h"

namespace steppe::cli {
namespace {

// Expert weights by the expert's number, so that any rank can make any of them.
ops::ExpertWeights expert_weights(const DispatchBenchOptions& o, int64_t expert) {
  auto random = at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(1000 + expert));
  const auto fp32 = at::TensorOptions().dtype(at::kFloat);
  const auto scaled = [&](int64_t rows, int64_t columns) {
    return at::randn({rows, columns}, random, fp32).div_(std::sqrt(static_cast<double>(columns))).to(o.dtype);
  };
  auto gate_up = scaled(2 * o.intermediate, o.hidden);
  return {gate_up, scaled(o.hidden, o.intermediate)};
}

ops::RoutingProfile::Shape profile_shape(const DispatchBenchOptions& o, int64_t rank) {
  const auto split = ops::split_tokens(o.dispatch, o.tokens);
  return {o.tokens, o.num_experts, split.num_chunks, o.num_experts / o.expert_degree,
          static_cast<uint64_t>(rank)};
}

}  // namespace

comm::Pending CountingCommunicator::exchange(std::span<const at::Tensor> sends,
                                             std::span<const at::Tensor> receives) {
  const auto& own = sends[rank()];
  if (own.defined() && own.dim() == 2) ++activations;
  return inner_.exchange(sends, receives);
}

ProfileCounts::ProfileCounts(const DispatchBenchOptions& o) {
  const auto split = ops::split_tokens(o.dispatch, o.tokens);
  whole_ = {o.num_experts, std::vector<int64_t>(o.expert_degree * o.num_experts, 0)};
  in_chunks_ = {o.num_experts, {}, split};
  in_chunks_.routes.resize(o.expert_degree * split.num_chunks * o.num_experts, 0);
  const int64_t routes_of_source = split.num_chunks * o.num_experts;
  std::vector<int32_t> ids(o.top_k);
  for (int source = 0; source < o.expert_degree; ++source) {
    const auto own = in_chunks_.routes.begin() + source * routes_of_source;
    if (source > 0 && o.profile.kind != ops::RoutingProfile::Kind::kRandom) {
      std::copy_n(in_chunks_.routes.begin(), routes_of_source, own);  // every rank routes alike
    } else {
      for (int64_t chunk = 0; chunk < split.num_chunks; ++chunk)
        for (int64_t i = 0; i < split.tokens(chunk, o.tokens); ++i) {
          o.profile.experts_of(profile_shape(o, source),
                               split.first_token(chunk, o.tokens) + i * split.stride(), ids);
          for (const int32_t e : ids) ++own[chunk * o.num_experts + e];
        }
    }
    for (int64_t i = 0; i < routes_of_source; ++i)
      whole_.routes[source * o.num_experts + i % o.num_experts] += own[i];
  }
}

BenchLayer::BenchLayer(const DispatchBenchOptions& given, int own_rank) : options(given), rank(own_rank) {
  const auto& o = options;
  context = {o.dry ? at::kMeta : at::kCPU, o.dtype, &counters};
  const int64_t local = o.num_experts / o.expert_degree;
  x = context.empty({o.tokens, o.hidden}), dy = context.empty({o.tokens, o.hidden});
  y = context.empty({o.tokens, o.hidden});
  routing.ids_Nk = context.empty({o.tokens, o.top_k}, at::kInt);
  routing.weights_Nk = context.empty({o.tokens, o.top_k}, at::kFloat);
  dweights = context.empty({o.tokens, o.top_k}, at::kFloat);
  weights = {context.empty({local, 2 * o.intermediate, o.hidden}),
             context.empty({local, o.hidden, o.intermediate})};
  grads = {context.empty(weights.gate_up_E2IH.sizes(), o.gradients),
           context.empty(weights.down_EHI.sizes(), o.gradients)};
  if (o.dry) return;
  auto random = at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(1 + rank));
  x.normal_(0, 1, random), dy.normal_(0, 1, random);
  x_before = x.clone();
  routing.weights_Nk.fill_(1.0 / static_cast<double>(o.top_k));
  for (int64_t e = 0; e < local; ++e) {
    const auto own = expert_weights(o, rank * local + e);
    weights.gate_up_E2IH.select(0, e).copy_(own.gate_up_E2IH);
    weights.down_EHI.select(0, e).copy_(own.down_EHI);
  }
  const std::span ids(routing.ids_Nk.data_ptr<int32_t>(), static_cast<size_t>(o.tokens * o.top_k));
  for (int64_t t = 0; t < o.tokens; ++t)
    o.profile.experts_of(profile_shape(o, rank), t, ids.subspan(t * o.top_k, o.top_k));
}

void BenchLayer::restore_x() {
  if (x_before.defined()) x.copy_(x_before);
}

void BenchLayer::forward(comm::Communicator& group, const ops::DispatchOptions& kind) {
  kernels::fill_zero(y);
  ops::dispatch_forward({context, group, routing, weights, kind}, y, x, options.keep ? &saved : nullptr);
}

void BenchLayer::backward(comm::Communicator& group, const ops::DispatchOptions& kind) {
  ops::dispatch_backward({context, group, routing, weights, kind}, {x, dweights, grads}, dy, x,
                         options.keep ? &saved : nullptr);
}

double BenchLayer::error_of_some_tokens() const {
  const auto& o = options;
  double error = 0, size = 0;
  for (int64_t t = 0; t < o.tokens; t += std::max<int64_t>(1, o.tokens / 4)) {
    const auto row = x_before[t].to(at::kDouble);
    auto want = at::zeros({o.hidden}, at::kDouble);
    for (int64_t j = 0; j < o.top_k; ++j) {
      const auto expert = expert_weights(o, routing.ids_Nk[t][j].item<int64_t>());
      const auto gate_up = expert.gate_up_E2IH.to(at::kDouble).mv(row);
      const auto gate = gate_up.narrow(0, 0, o.intermediate),
                 up = gate_up.narrow(0, o.intermediate, o.intermediate);
      want += expert.down_EHI.to(at::kDouble).mv(gate.sigmoid() * gate * up) *
              routing.weights_Nk[t][j].item<double>();
    }
    error = std::max(error, (y[t].to(at::kDouble) - want).abs().max().item<double>());
    size = std::max(size, want.abs().max().item<double>());
  }
  return size > 0 ? error / size : 0;
}

}  // namespace steppe::cli
