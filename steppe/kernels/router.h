// Routing arithmetic, fp32 throughout. Fill given tensors, return at once on `meta`, allocate nothing.
// All tensors are contiguous; k is at most kMaxTopK; ids that are given lie in [0, E), and a token may list
// an expert twice (a replayed routing may). Ties go to the lower expert id, so that the choice is the same
// everywhere.
#pragma once

#include <ATen/core/Tensor.h>

namespace steppe::kernels {

inline constexpr int64_t kMaxTopK = 64;

// scores = softmax(logits) by row, [N, E] fp32; scores may be logits. log_sum_exp [N] fp32 of the logits,
// unless undefined.
void softmax_rows(const at::Tensor& scores_NE, const at::Tensor& logits_NE,
                  const at::Tensor& log_sum_exp_N = {});

// ids [N, k] int32: the k largest of scores + bias (bias [E] fp32 or undefined), in descending order. NaN
// counts as the smallest value: the ids of a row are distinct and valid whatever it holds.
void top_k(const at::Tensor& ids_Nk, const at::Tensor& scores_NE, const at::Tensor& bias_E);

// weights [N, k] fp32 = scores at ids; divided by their sum if normalize.
void gather_scores(const at::Tensor& weights_Nk, const at::Tensor& scores_NE, const at::Tensor& ids_Nk,
                   bool normalize);

// Backward of gather_scores and softmax together: dlogits [N, E] (may be scores) from dweights [N, k].
struct RouterBackward {
  at::Tensor dlogits_NE;
  at::Tensor dweights_Nk, weights_Nk, scores_NE, ids_Nk;
  bool normalize = true;
  at::Tensor dscores_E{};      // [E] fp32, or undefined: a gradient that every token's scores have besides
  at::Tensor log_sum_exp_N{};  // [N] fp32, or undefined: with it, the gradient of
  double log_sum_exp_squared_coeff = 0;  // coeff·log_sum_exp²
};
void router_backward(const RouterBackward& args);

// counts [E] int64 = number of routes to each expert. Zeroed first.
void count_routes(const at::Tensor& counts_E, const at::Tensor& ids_Nk);

}  // namespace steppe::kernels
