// One warp per token: a lane holds every 32nd expert, and lanes fold by shuffles, always in the same order.
#include <cuda_runtime.h>

#include <cstdint>

#include "steppe/kernels/cuda_failure.h"
#include "steppe/kernels/element_cuda.cuh"
#include "steppe/kernels/launch_cuda.cuh"
#include "steppe/kernels/router_backend.h"

namespace steppe::kernels::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kMaxK = 64;

int warp_blocks(int64_t tokens) {
  return static_cast<int>((tokens + kWarps - 1) / kWarps);
}
dim3 warp_threads() {
  return dim3(kWarp, kWarps);
}

__device__ int64_t token_of_warp() {
  return blockIdx.x * int64_t{kWarps} + threadIdx.y;
}
__device__ float minus_infinity() {
  return __int_as_float(0xff800000);
}

__global__ void softmax_kernel(float* scores, const float* logits, float* log_sum_exp, RouterRows rows) {
  const int64_t t = token_of_warp();
  if (t >= rows.tokens) return;
  const float* x = logits + t * rows.experts;
  float* y = scores + t * rows.experts;
  float m = minus_infinity(), z = 0;
  for (int64_t e = threadIdx.x; e < rows.experts; e += kWarp) m = fmaxf(m, x[e]);
  for (int step = kWarp / 2; step > 0; step /= 2) m = fmaxf(m, __shfl_xor_sync(kAllLanes, m, step));
  for (int64_t e = threadIdx.x; e < rows.experts; e += kWarp) {
    y[e] = expf(x[e] - m);
    z += y[e];
  }
  for (int step = kWarp / 2; step > 0; step /= 2) z += __shfl_xor_sync(kAllLanes, z, step);
  for (int64_t e = threadIdx.x; e < rows.experts; e += kWarp) y[e] /= z;
  if (log_sum_exp && threadIdx.x == 0) log_sum_exp[t] = m + logf(z);
}

// Whether (a, i) comes before (b, j): larger values first, then lower ids.
__device__ bool before(float a, int i, float b, int j) {
  return a > b || (a == b && i < j);
}

// k passes: each finds the first pair after the one found last, so that nothing need be marked.
__global__ void top_k_kernel(int32_t* ids, const float* scores, const float* bias, RouterRows rows) {
  const int64_t t = token_of_warp();
  if (t >= rows.tokens) return;
  float last = -minus_infinity();
  int last_id = -1;
  for (int64_t j = 0; j < rows.k; ++j) {
    float best = minus_infinity();
    int best_id = INT32_MAX;
    for (int e = threadIdx.x; e < rows.experts; e += kWarp) {
      float value = scores[t * rows.experts + e];
      if (bias) value += bias[e];
      if (isnan(value)) value = minus_infinity();
      if (before(last, last_id, value, e) && before(value, e, best, best_id)) {
        best = value;
        best_id = e;
      }
    }
    for (int step = kWarp / 2; step > 0; step /= 2) {
      const float other = __shfl_xor_sync(kAllLanes, best, step);
      const int other_id = __shfl_xor_sync(kAllLanes, best_id, step);
      if (before(other, other_id, best, best_id)) {
        best = other;
        best_id = other_id;
      }
    }
    if (threadIdx.x == 0) ids[t * rows.k + j] = best_id;
    last = best;
    last_id = best_id;
  }
}

__global__ void gather_scores_kernel(float* weights, const float* scores, const int32_t* ids, RouterRows rows,
                                     bool normalize) {
  const int64_t t = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  if (t >= rows.tokens) return;
  float* w = weights + t * rows.k;
  float total = 0;
  for (int64_t j = 0; j < rows.k; ++j) {
    w[j] = scores[t * rows.experts + ids[t * rows.k + j]];
    total += w[j];
  }
  if (!normalize) return;
  for (int64_t j = 0; j < rows.k; ++j) w[j] /= total;
}

__global__ void backward_kernel(RouterBackwardPointers args, RouterRows rows) {
  const int64_t t = token_of_warp();
  if (t >= rows.tokens) return;
  const int64_t k = rows.k;
  const float* scores = args.scores + t * rows.experts;
  const float* dweights = args.dweights + t * k;
  const int32_t* ids = args.ids + t * k;
  float picked[kMaxK];
  float total = 0, dot_weights = 0;
  for (int64_t j = 0; j < k; ++j) {
    picked[j] = scores[ids[j]];
    total += picked[j];
    dot_weights += dweights[j] * args.weights[t * k + j];
  }
  const auto dpicked = [&](int64_t j) {
    return args.normalize ? (dweights[j] - dot_weights) / total : dweights[j];
  };
  float dot = 0;
  for (int64_t j = 0; j < k; ++j) dot += dpicked(j) * picked[j];
  float shared = -dot;  // what every logit's gradient has, per score
  if (args.dscores) {
    float dot_dscores = 0;
    for (int64_t e = threadIdx.x; e < rows.experts; e += kWarp) dot_dscores += args.dscores[e] * scores[e];
    for (int step = kWarp / 2; step > 0; step /= 2) {
      dot_dscores += __shfl_xor_sync(kAllLanes, dot_dscores, step);
    }
    shared -= dot_dscores;
  }
  if (args.log_sum_exp) shared += 2 * args.log_sum_exp_squared_coeff * args.log_sum_exp[t];
  float* dlogits = args.dlogits + t * rows.experts;
  // dlogits may be scores: every lane has read its picks before any writes.
  __syncwarp();
  for (int64_t e = threadIdx.x; e < rows.experts; e += kWarp) {
    dlogits[e] = (args.dscores ? shared + args.dscores[e] : shared) * scores[e];
  }
  __syncwarp();
  if (threadIdx.x != 0) return;
  for (int64_t j = 0; j < k; ++j) dlogits[ids[j]] += dpicked(j) * picked[j];
}

// Integer sums: the same whatever the order.
__global__ void count_kernel(unsigned long long* counts, const int32_t* ids, int64_t routes) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t r = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; r < routes; r += stride)
    atomicAdd(counts + ids[r], 1ull);
}

}  // namespace

void softmax_rows(float* scores, const float* logits, float* log_sum_exp, const RouterRows& rows,
                  void* stream) {
  launch(softmax_kernel, warp_blocks(rows.tokens), warp_threads(), stream, scores, logits, log_sum_exp, rows);
  check_launch("softmax_rows");
}

void top_k(int32_t* ids, const float* scores, const float* bias, const RouterRows& rows, void* stream) {
  launch(top_k_kernel, warp_blocks(rows.tokens), warp_threads(), stream, ids, scores, bias, rows);
  check_launch("top_k");
}

void gather_scores(float* weights, const float* scores, const int32_t* ids, const RouterRows& rows,
                   bool normalize, void* stream) {
  const int blocks = static_cast<int>((rows.tokens + 255) / 256);
  launch(gather_scores_kernel, blocks, 256, stream, weights, scores, ids, rows, normalize);
  check_launch("gather_scores");
}

void router_backward(const RouterBackwardPointers& args, const RouterRows& rows, void* stream) {
  launch(backward_kernel, warp_blocks(rows.tokens), warp_threads(), stream, args, rows);
  check_launch("router_backward");
}

void count_routes(int64_t* counts, const int32_t* ids, int64_t experts, int64_t routes, void* stream) {
  cudaMemsetAsync(counts, 0, experts * sizeof(int64_t), static_cast<cudaStream_t>(stream));
  if (routes > 0) {
    launch(count_kernel, num_blocks(routes, 256), 256, stream, reinterpret_cast<unsigned long long*>(counts),
           ids, routes);
  }
  check_launch("count_routes");
}

}  // namespace steppe::kernels::cuda
