// The MoE router: scores of every expert, the k chosen, and their weights. Everything in fp32.
//
// Who decides is a RoutingSource: the router itself (largest scores, plus the balancing bias), a recorded
// routing (tests; comparisons between layouts), or a profile (planning, where there are no values). Weights
// are always the scores at the chosen ids, so a replayed or profiled routing still trains its router. The
// decision is made once per layer and micro-batch, in the first forward, and pinned by the caller.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "steppe/ops/context.h"
#include "steppe/ops/moe_dispatch/route_counts.h"

namespace steppe::ops {

struct RouterConfig {
  int64_t num_experts = 0, top_k = 0;
  bool normalize = true;  // weights of a token sum to 1
};

// Which tokens are being routed.
struct RoutedTokens {
  int64_t layer = 0;
  std::span<const int64_t> token_ids;  // [N] layout-independent identity of each token, host
  ChunkSplit split{};                  // how they are counted
};

class RoutingSource {
 public:
  virtual ~RoutingSource() = default;
  // Fills ids [N, k] int32 (left alone on `meta`) and returns this rank's routes per chunk and expert [K·E],
  // on the host. counts_KE: int64 scratch on the device. Costs one device-to-host copy of K·E counts.
  virtual std::vector<int64_t> choose(const RoutedTokens& tokens, const at::Tensor& ids_Nk,
                                      const at::Tensor& scores_NE, const at::Tensor& bias_E,
                                      const at::Tensor& counts_KE) = 0;
};

// The k largest of score + bias; ties go to the lower id.
class TopKRouting final : public RoutingSource {
 public:
  std::vector<int64_t> choose(const RoutedTokens& tokens, const at::Tensor& ids_Nk,
                              const at::Tensor& scores_NE, const at::Tensor& bias_E,
                              const at::Tensor& counts_KE) override;
};

// A routing given as a function of (layer, token id) → k expert ids. A table of a recorded run, or a profile.
class GivenRouting final : public RoutingSource {
 public:
  using Function = std::function<void(int64_t layer, int64_t token_id, std::span<int32_t> experts_k)>;
  GivenRouting(Function experts_of, RouterConfig config)
      : experts_of_(std::move(experts_of)), config_(config) {}
  std::vector<int64_t> choose(const RoutedTokens& tokens, const at::Tensor& ids_Nk,
                              const at::Tensor& scores_NE, const at::Tensor& bias_E,
                              const at::Tensor& counts_KE) override;

 private:
  Function experts_of_;
  RouterConfig config_;
};

// Token i takes experts {(i+j) mod E : j < k}.
GivenRouting balanced_routing(RouterConfig config);

struct RouterScores {
  at::Tensor scores_NE;        // softmax(x·W_rᵀ)
  at::Tensor log_sum_exp_N{};  // of the logits; undefined unless asked for
};

// In category `routing`. x [N, H] and weight [E, H] in the working dtype; bf16 is cast in row tiles, so no
// fp32 copy of the activations exists.
RouterScores router_scores(const OpContext& context, const at::Tensor& x_NH, const at::Tensor& weight_EH,
                           bool with_log_sum_exp = false);

// weights [N, k] fp32 at the pinned ids.
at::Tensor router_weights(const OpContext& context, const RouterConfig& config, const at::Tensor& scores_NE,
                          const at::Tensor& ids_Nk);

// Losses that a layer's router has beside the model's own, as sums over the tokens of this rank:
//   balance  Σ_t ⟨dscores, scores_t⟩. With dscores_e = coeff·E·f_e/T, where f_e is expert e's share of the
//            routes of all ranks and T the tokens of the step, it adds up to coeff·E·Σ_e f_e·P_e, P the mean
//            scores (Fedus et al. 2021, Switch Transformer, §2.2): coeff where the load is even. f has no
//            gradient.
//   z        z_coeff·Σ_t log_sum_exp_t². With coeff/T it adds up to coeff·mean(log_sum_exp²) (Zoph et al.
//            2022, ST-MoE, §3.2).
struct RouterLosses {
  at::Tensor dscores_E{};     // [E] fp32; undefined: no balance loss
  double z_coeff = 0;         // 0: no z-loss
  at::Tensor balance_1{};     // fp32 accumulator of the balance loss
  at::Tensor square_sum_1{};  // fp64 accumulator of log_sum_exp²
};

// Given dweights [N, k]: dx [N, H] += dlogits·W_r, grad_weight [E, H] fp32 += dlogitsᵀ·x, with what the
// losses add. Consumes scores (the logit gradient is written over them).
struct RouterGradient {
  at::Tensor dx_NH, grad_weight_EH;
  at::Tensor dweights_Nk, weights_Nk;
  RouterScores router;
  at::Tensor ids_Nk, x_NH, weight_EH;
  RouterLosses losses{};
};
void router_backward(const OpContext& context, const RouterConfig& config, const RouterGradient& args);

}  // namespace steppe::ops
