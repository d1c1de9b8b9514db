#include "steppe/ops/router/router.h"

#include <algorithm>
#include <cstring>

#include "steppe/base/error.h"
#include "steppe/kernels/pointwise.h"
#include "steppe/kernels/router.h"
#include "steppe/kernels/row_bias.h"
#include "steppe/memory/scope.h"
#include "steppe/ops/product.h"

namespace steppe::ops {
namespace {

constexpr int64_t kCastTileRows = 1024;

std::vector<int64_t> to_host(const at::Tensor& counts_E) {
  std::vector<int64_t> counts(counts_E.numel(), 0);
  if (counts_E.is_meta()) return counts;
  if (counts_E.is_cpu()) {
    std::memcpy(counts.data(), counts_E.data_ptr(), counts.size() * sizeof(int64_t));
  } else {
    at::from_blob(counts.data(), {counts_E.numel()}, at::kLong).copy_(counts_E);
  }
  return counts;
}

std::vector<int64_t> counted(std::span<const int32_t> ids, int64_t k, int64_t num_experts,
                             const ChunkSplit& split) {
  std::vector<int64_t> counts(split.num_chunks * num_experts, 0);
  const int64_t num_tokens = static_cast<int64_t>(ids.size()) / k;
  for (int64_t chunk = 0; chunk < split.num_chunks; ++chunk) {
    const auto own = std::span(counts).subspan(chunk * num_experts, num_experts);
    const int64_t first = split.first_token(chunk, num_tokens), tokens = split.tokens(chunk, num_tokens);
    for (int64_t i = 0; i < tokens; ++i)
      for (const int32_t e : ids.subspan((first + i * split.stride()) * k, k)) ++own[e];
  }
  return counts;
}

std::vector<int64_t> counted(const at::Tensor& ids_Nk, const at::Tensor& counts_KE, const ChunkSplit& split) {
  const int64_t num_experts = counts_KE.numel() / split.num_chunks, num_tokens = ids_Nk.size(0);
  if (split.num_chunks == 1) {
    kernels::count_routes(counts_KE, ids_Nk);
    return to_host(counts_KE);
  }
  if (ids_Nk.is_cpu()) {
    return counted({ids_Nk.const_data_ptr<int32_t>(), static_cast<size_t>(ids_Nk.numel())}, ids_Nk.size(1),
                   num_experts, split);
  }
  for (int64_t chunk = 0; chunk < split.num_chunks; ++chunk) {
    const int64_t first = split.first_token(chunk, num_tokens), stride = split.stride();
    const int64_t tokens = split.tokens(chunk, num_tokens);
    const auto ids = ids_Nk.slice(0, first, tokens > 0 ? first + (tokens - 1) * stride + 1 : first, stride);
    kernels::count_routes(counts_KE.narrow(0, chunk * num_experts, num_experts), ids.contiguous());
  }
  return to_host(counts_KE);
}

// Calls use(rows of x in fp32, first row) tile by tile; the whole of x at once when it is fp32 already.
template <class Use>
void for_fp32_tiles(const OpContext& context, const at::Tensor& x_NH, Use use) {
  const int64_t n = x_NH.size(0);
  if (x_NH.scalar_type() == at::kFloat) return use(x_NH, int64_t{0});
  const auto tile = context.empty({std::min(kCastTileRows, n), x_NH.size(1)}, at::kFloat);
  for (int64_t begin = 0; begin < n; begin += kCastTileRows) {
    const int64_t rows = std::min(kCastTileRows, n - begin);
    const auto part = tile.narrow(0, 0, rows);
    kernels::copy_cast(part, x_NH.narrow(0, begin, rows));
    use(part, begin);
  }
}

at::Tensor fp32_of(const OpContext& context, const at::Tensor& weight) {
  if (weight.scalar_type() == at::kFloat) return weight;
  const auto copy = context.empty(weight.sizes(), at::kFloat);
  kernels::copy_cast(copy, weight);
  return copy;
}

void add_losses(const OpContext& context, const RouterScores& router, const RouterLosses& losses) {
  STEPPE_ASSERT((losses.z_coeff != 0) == router.log_sum_exp_N.defined(),
                "[router] the z-loss needs log-sum-exps, and they nothing else");
  if (losses.z_coeff != 0) kernels::add_sum_of_squares(losses.square_sum_1, router.log_sum_exp_N);
  if (!losses.dscores_E.defined()) return;
  const auto sums = context.empty({1, router.scores_NE.size(1)}, at::kFloat);
  kernels::fill_zero(sums);
  kernels::add_column_sums(sums.select(0, 0), router.scores_NE, {});
  kernels::add_row_dots(losses.balance_1, sums, losses.dscores_E);
}

}  // namespace

std::vector<int64_t> TopKRouting::choose(const RoutedTokens& tokens, const at::Tensor& ids_Nk,
                                         const at::Tensor& scores_NE, const at::Tensor& bias_E,
                                         const at::Tensor& counts_KE) {
  STEPPE_ASSERT(!ids_Nk.is_meta(),
                "[router] a dry run needs a given routing: there are no scores to choose by");
  kernels::top_k(ids_Nk, scores_NE, bias_E);
  return counted(ids_Nk, counts_KE, tokens.split);
}

std::vector<int64_t> GivenRouting::choose(const RoutedTokens& tokens, const at::Tensor& ids_Nk,
                                          const at::Tensor&, const at::Tensor&, const at::Tensor&) {
  const int64_t k = config_.top_k, n = static_cast<int64_t>(tokens.token_ids.size());
  STEPPE_ASSERT(ids_Nk.size(0) == n, "[router] {} tokens to route, {} token ids", ids_Nk.size(0), n);
  std::vector<int32_t> ids(n * k);
  for (int64_t t = 0; t < n; ++t) {
    const std::span<int32_t> experts(ids.data() + t * k, k);
    experts_of_(tokens.layer, tokens.token_ids[t], experts);
    for (const int32_t e : experts) {
      STEPPE_CHECK_VALUE(e >= 0 && e < config_.num_experts,
                         "[router] the given routing sends token {} of layer {} to expert {}, of {}",
                         tokens.token_ids[t], tokens.layer, e, config_.num_experts);
    }
  }
  if (ids_Nk.is_cpu() && n > 0) {
    std::memcpy(ids_Nk.data_ptr(), ids.data(), ids.size() * sizeof(int32_t));
  } else if (ids_Nk.is_cuda()) {
    // Read when this returns; blocking, it would empty the stream.
    ids_Nk.copy_(at::from_blob(ids.data(), {n, k}, at::kInt), /*non_blocking=*/true);
  }
  return counted(ids, k, config_.num_experts, tokens.split);
}

GivenRouting balanced_routing(RouterConfig config) {
  return {[config](int64_t, int64_t token_id, std::span<int32_t> experts) {
            for (size_t j = 0; j < experts.size(); ++j) {
              experts[j] = static_cast<int32_t>((token_id + static_cast<int64_t>(j)) % config.num_experts);
            }
          },
          config};
}

RouterScores router_scores(const OpContext& context, const at::Tensor& x_NH, const at::Tensor& weight_EH,
                           bool with_log_sum_exp) {
  const memory::Scope scope(memory::Category::kRouting);
  RouterScores router{context.empty({x_NH.size(0), weight_EH.size(0)}, at::kFloat), {}};
  if (with_log_sum_exp) router.log_sum_exp_N = context.empty({x_NH.size(0)}, at::kFloat);
  const auto& scores = router.scores_NE;
  const auto weight = fp32_of(context, weight_EH);
  for_fp32_tiles(context, x_NH, [&](const at::Tensor& rows, int64_t begin) {
    product(context, FlopKind::kRouter, scores.narrow(0, begin, rows.size(0)), rows, weight.t());
  });
  kernels::softmax_rows(scores, scores, router.log_sum_exp_N);
  return router;
}

at::Tensor router_weights(const OpContext& context, const RouterConfig& config, const at::Tensor& scores_NE,
                          const at::Tensor& ids_Nk) {
  const memory::Scope scope(memory::Category::kRouting);
  const auto weights = context.empty({ids_Nk.size(0), config.top_k}, at::kFloat);
  kernels::gather_scores(weights, scores_NE, ids_Nk, config.normalize);
  return weights;
}

void router_backward(const OpContext& context, const RouterConfig& config, const RouterGradient& args) {
  const memory::Scope scope(memory::Category::kRouting);
  const auto& dlogits = args.router.scores_NE;
  add_losses(context, args.router, args.losses);
  kernels::router_backward({dlogits, args.dweights_Nk, args.weights_Nk, args.router.scores_NE, args.ids_Nk,
                            config.normalize, args.losses.dscores_E, args.router.log_sum_exp_N,
                            args.losses.z_coeff});
  const auto weight = fp32_of(context, args.weight_EH);
  for_fp32_tiles(context, args.x_NH, [&](const at::Tensor& rows, int64_t begin) {
    product_accumulate(context, FlopKind::kRouter, args.grad_weight_EH,
                       dlogits.narrow(0, begin, rows.size(0)).t(), rows);
  });
  const int64_t n = args.x_NH.size(0);
  if (args.dx_NH.scalar_type() == at::kFloat) {
    product_add(context, FlopKind::kRouter, args.dx_NH, dlogits, weight);
  } else {
    const auto tile = context.empty({std::min(kCastTileRows, n), args.dx_NH.size(1)}, at::kFloat);
    for (int64_t begin = 0; begin < n; begin += kCastTileRows) {
      const int64_t rows = std::min(kCastTileRows, n - begin);
      const auto part = tile.narrow(0, 0, rows), target = args.dx_NH.narrow(0, begin, rows);
      kernels::copy_cast(part, target);
      product_add(context, FlopKind::kRouter, part, dlogits.narrow(0, begin, rows), weight);
      kernels::copy_cast(target, part);
    }
  }
}

}  // namespace steppe::ops
