#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "steppe/kernels/parallel_cpu.h"
#include "steppe/kernels/router_backend.h"
#include "steppe/kernels/vector_math_cpu.h"

namespace steppe::kernels::cpu {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
// The checks of router.cpp hold k to this (kMaxTopK, whose header needs Torch).
constexpr int kMaxK = 64;

float row_maximum(const float* x, int64_t n) {
  Lanes m = broadcast(kMinusInfinity);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const Lanes v = load(x + i);
    m = m < v ? v : m;
  }
  if (i < n) {
    const Lanes v = load_first(x + i, n - i, kMinusInfinity);
    m = m < v ? v : m;
  }
  return maximum(m);
}

// Returns the log-sum-exp of x.
float softmax_row(float* y, const float* x, int64_t n) {
  const float m = row_maximum(x, n);
  Lanes total{};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const Lanes e = exp(load(x + i) - m);
    store(y + i, e);
    total += e;
  }
  if (i < n) {
    const Lanes e = exp(load_first(x + i, n - i, kMinusInfinity) - m);
    store_first(y + i, e, n - i);
    total += e;
  }
  const float z = sum(total);
  for (i = 0; i < n; ++i) y[i] /= z;
  return m + std::log(z);
}

// The best k so far in descending order. Equal values keep the order they came in, that of their ids.
void top_k_row(int32_t* ids, const float* scores, const float* bias, int64_t experts, int64_t k) {
  float best[kMaxK];
  int64_t count = 0;
  for (int64_t e = 0; e < experts; ++e) {
    float value = bias ? scores[e] + bias[e] : scores[e];
    if (value != value) value = kMinusInfinity;
    if (count == k && !(value > best[k - 1])) continue;
    int64_t place = count < k ? count++ : k - 1;
    for (; place > 0 && value > best[place - 1]; --place) {
      best[place] = best[place - 1];
      ids[place] = ids[place - 1];
    }
    best[place] = value;
    ids[place] = static_cast<int32_t>(e);
  }
}

void backward_row(const RouterBackwardPointers& args, const RouterRows& rows, int64_t t) {
  const int64_t k = rows.k;
  const float* scores = args.scores + t * rows.experts;
  const float* dweights = args.dweights + t * k;
  const float* weights = args.weights + t * k;
  const int32_t* ids = args.ids + t * k;
  float picked[kMaxK], dpicked[kMaxK];
  float total = 0, dot_weights = 0;
  for (int64_t j = 0; j < k; ++j) {
    picked[j] = scores[ids[j]];
    total += picked[j];
    dot_weights += dweights[j] * weights[j];
  }
  float dot = 0;
  for (int64_t j = 0; j < k; ++j) {
    dpicked[j] = args.normalize ? (dweights[j] - dot_weights) / total : dweights[j];
    dot += dpicked[j] * picked[j];
  }
  float* dlogits = args.dlogits + t * rows.experts;
  float shared = -dot;  // what every logit's gradient has, per score
  if (args.dscores) {
    for (int64_t e = 0; e < rows.experts; ++e) shared -= args.dscores[e] * scores[e];
  }
  if (args.log_sum_exp) shared += 2 * args.log_sum_exp_squared_coeff * args.log_sum_exp[t];
  if (args.dscores) {
    for (int64_t e = 0; e < rows.experts; ++e) dlogits[e] = (shared + args.dscores[e]) * scores[e];
  } else {
    for (int64_t e = 0; e < rows.experts; ++e) dlogits[e] = shared * scores[e];
  }
  for (int64_t j = 0; j < k; ++j) dlogits[ids[j]] += dpicked[j] * picked[j];
}

}  // namespace

void softmax_rows(float* scores, const float* logits, float* log_sum_exp, const RouterRows& rows) {
  parallel_ranges(rows.tokens, grain_of(rows.experts), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const float lse = softmax_row(scores + t * rows.experts, logits + t * rows.experts, rows.experts);
      if (log_sum_exp) log_sum_exp[t] = lse;
    }
  });
}

void top_k(int32_t* ids, const float* scores, const float* bias, const RouterRows& rows) {
  parallel_ranges(rows.tokens, grain_of(4 * rows.experts), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t)
      top_k_row(ids + t * rows.k, scores + t * rows.experts, bias, rows.experts, rows.k);
  });
}

void gather_scores(float* weights, const float* scores, const int32_t* ids, const RouterRows& rows,
                   bool normalize) {
  parallel_ranges(rows.tokens, grain_of(4 * rows.k), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      float* w = weights + t * rows.k;
      float total = 0;
      for (int64_t j = 0; j < rows.k; ++j) {
        w[j] = scores[t * rows.experts + ids[t * rows.k + j]];
        total += w[j];
      }
      if (!normalize) continue;
      for (int64_t j = 0; j < rows.k; ++j) w[j] /= total;
    }
  });
}

void router_backward(const RouterBackwardPointers& args, const RouterRows& rows) {
  parallel_ranges(rows.tokens, grain_of(rows.experts + 8 * rows.k), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) backward_row(args, rows, t);
  });
}

void count_routes(int64_t* counts, const int32_t* ids, int64_t experts, int64_t routes) {
  std::fill_n(counts, experts, int64_t{0});
  for (int64_t r = 0; r < routes; ++r) ++counts[ids[r]];
}

}  // namespace steppe::kernels::cpu
