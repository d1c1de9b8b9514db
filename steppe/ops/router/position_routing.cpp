#include "steppe/ops/router/position_routing.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <numeric>

#include "steppe/base/error.h"

namespace steppe::ops {
namespace {

struct Shard {
  int64_t layer, num_tokens, num_chunks;
  bool operator==(const Shard&) const = default;
};
using ExpertsAt = std::function<void(const Shard& shard, int64_t token, std::span<int32_t> experts_k)>;

class PositionRouting final : public RoutingSource {
 public:
  // `by_layer`: the routing of one layer says nothing of another's.
  PositionRouting(ExpertsAt experts_at, const RouterConfig& config, bool by_layer)
      : experts_at_(std::move(experts_at)), config_(config), by_layer_(by_layer) {}

  std::vector<int64_t> choose(const RoutedTokens& tokens, const at::Tensor& ids_Nk, const at::Tensor&,
                              const at::Tensor&, const at::Tensor&) override {
    const int64_t n = ids_Nk.size(0), k = config_.top_k;
    route({by_layer_ ? tokens.layer : 0, n, tokens.split.num_chunks});
    if (n > 0 && ids_Nk.is_cpu()) {
      std::memcpy(ids_Nk.data_ptr(), ids_.data(), ids_.size() * sizeof(int32_t));
    } else if (n > 0 && ids_Nk.is_cuda()) {
      // Read when this returns; blocking, it would empty the stream.
      ids_Nk.copy_(at::from_blob(ids_.data(), {n, k}, at::kInt), /*non_blocking=*/true);
    }
    return counted(tokens.split, n);
  }

 private:
  // Layers mostly ask for the same again.
  void route(const Shard& shard) {
    if (routed_ == shard) return;
    routed_ = shard;
    ids_.resize(shard.num_tokens * config_.top_k);
    for (int64_t t = 0; t < shard.num_tokens; ++t) {
      experts_at_(shard, t, std::span(ids_).subspan(t * config_.top_k, config_.top_k));
    }
    counts_.clear();
  }

  std::vector<int64_t> counted(const ChunkSplit& split, int64_t num_tokens) {
    if (!counts_.empty() && split.membership == counted_as_) return counts_;
    counted_as_ = split.membership;
    counts_.assign(split.num_chunks * config_.num_experts, 0);
    for (int64_t chunk = 0; chunk < split.num_chunks; ++chunk) {
      const auto own = std::span(counts_).subspan(chunk * config_.num_experts, config_.num_experts);
      const int64_t first = split.first_token(chunk, num_tokens), tokens = split.tokens(chunk, num_tokens);
      for (int64_t i = 0; i < tokens; ++i) {
        const int64_t token = first + i * split.stride();
        for (int64_t j = 0; j < config_.top_k; ++j) ++own[ids_[token * config_.top_k + j]];
      }
    }
    return counts_;
  }

  ExpertsAt experts_at_;
  RouterConfig config_;
  bool by_layer_;
  Shard routed_{-1, -1, -1};
  std::vector<int32_t> ids_;
  std::vector<int64_t> counts_;
  Membership counted_as_ = Membership::kStrided;
};

constexpr double kGoldenRatio = 0.6180339887498949;

}  // namespace

std::unique_ptr<RoutingSource> profile_routing(const RoutingProfile& profile, const RouterConfig& config,
                                               int64_t experts_per_rank, uint64_t seed) {
  const int64_t num_experts = config.num_experts;
  return std::make_unique<PositionRouting>(
      [=](const Shard& shard, int64_t token, std::span<int32_t> experts) {
        profile.experts_of({shard.num_tokens, num_experts, shard.num_chunks, experts_per_rank, seed}, token,
                           experts);
      },
      config, /*by_layer=*/false);
}

std::unique_ptr<RoutingSource> recorded_routing(std::vector<std::vector<int64_t>> load,
                                                const RouterConfig& config) {
  for (auto& layer : load) {
    STEPPE_CHECK_VALUE(layer.empty() || static_cast<int64_t>(layer.size()) == config.num_experts,
                       "[recorded routing] a layer's load must have {} experts, got {}", config.num_experts,
                       layer.size());
    STEPPE_CHECK_VALUE(std::none_of(layer.begin(), layer.end(), [](int64_t l) { return l < 0; }),
                       "[recorded routing] loads must not be negative");
    if (std::accumulate(layer.begin(), layer.end(), int64_t{0}) == 0) layer.assign(config.num_experts, 1);
    std::partial_sum(layer.begin(), layer.end(), layer.begin());
  }
  return std::make_unique<PositionRouting>(
      [cumulative = std::move(load)](const Shard& shard, int64_t token, std::span<int32_t> experts) {
        const auto& of_layer = cumulative.at(shard.layer);
        const auto k = static_cast<int64_t>(experts.size());
        for (int64_t j = 0; j < k; ++j) {
          const double u = static_cast<double>(token * k + j + 1) * kGoldenRatio;
          const double at = (u - std::floor(u)) * static_cast<double>(of_layer.back());
          const auto found = std::upper_bound(of_layer.begin(), of_layer.end() - 1, static_cast<int64_t>(at));
          experts[j] = static_cast<int32_t>(found - of_layer.begin());
        }
      },
      config, /*by_layer=*/true);
}

}  // namespace steppe::ops
