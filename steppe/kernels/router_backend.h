// Raw-pointer backends of router.h. No Torch header.
#pragma once

#include <cstdint>

namespace steppe::kernels {

struct RouterRows {
  int64_t tokens = 0, experts = 0, k = 0;
};

struct RouterBackwardPointers {
  float* dlogits = nullptr;  // may be scores
  const float *dweights = nullptr, *weights = nullptr, *scores = nullptr;
  const int32_t* ids = nullptr;
  bool normalize = true;
  const float* dscores = nullptr;      // [experts], or none
  const float* log_sum_exp = nullptr;  // [tokens], or none
  float log_sum_exp_squared_coeff = 0;
};

namespace cpu {
// log_sum_exp: may be null.
void softmax_rows(float* scores, const float* logits, float* log_sum_exp, const RouterRows& rows);
void top_k(int32_t* ids, const float* scores, const float* bias, const RouterRows& rows);
void gather_scores(float* weights, const float* scores, const int32_t* ids, const RouterRows& rows,
                   bool normalize);
void router_backward(const RouterBackwardPointers& args, const RouterRows& rows);
void count_routes(int64_t* counts, const int32_t* ids, int64_t experts, int64_t routes);
}  // namespace cpu

namespace cuda {
void softmax_rows(float* scores, const float* logits, float* log_sum_exp, const RouterRows& rows,
                  void* stream);
void top_k(int32_t* ids, const float* scores, const float* bias, const RouterRows& rows, void* stream);
void gather_scores(float* weights, const float* scores, const int32_t* ids, const RouterRows& rows,
                   bool normalize, void* stream);
void router_backward(const RouterBackwardPointers& args, const RouterRows& rows, void* stream);
void count_routes(int64_t* counts, const int32_t* ids, int64_t experts, int64_t routes, void* stream);
}  // namespace cuda

}  // namespace steppe::kernels
