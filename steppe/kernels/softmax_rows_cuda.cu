// One block per row; a thread keeps a running maximum and sum of its columns, and the block folds them by a
// fixed tree.
#include <cuda_runtime.h>

#include <cstdint>

#include "steppe/kernels/cuda_failure.h"
#include "steppe/kernels/element_cuda.cuh"
#include "steppe/kernels/launch_cuda.cuh"
#include "steppe/kernels/softmax_rows_backend.h"

namespace steppe::kernels::cuda {
namespace {

constexpr int kThreads = 256;

__device__ float minus_infinity() {
  return __int_as_float(0xff800000);
}
__device__ float finite_base(float maximum) {
  return maximum == minus_infinity() ? 0.f : maximum;
}

struct MaximumAndSum {
  float maximum, sum;
};

__device__ MaximumAndSum merge(MaximumAndSum a, MaximumAndSum b) {
  const float m = fmaxf(a.maximum, b.maximum), base = finite_base(m);
  return {m, a.sum * expf(a.maximum - base) + b.sum * expf(b.maximum - base)};
}

// The whole block's, in thread 0.
__device__ MaximumAndSum fold_block(MaximumAndSum mine) {
  __shared__ MaximumAndSum shared[kThreads];
  shared[threadIdx.x] = mine;
  for (int half = kThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) shared[threadIdx.x] = merge(shared[threadIdx.x], shared[threadIdx.x + half]);
  }
  const MaximumAndSum all = shared[0];
  __syncthreads();
  return all;
}

template <class T>
__global__ void statistics_kernel(float* stats, const T* logits, LogitStrip strip) {
  for (int64_t r = blockIdx.x; r < strip.rows; r += gridDim.x) {
    const T* y = logits + r * strip.row_stride;
    MaximumAndSum mine{minus_infinity(), 0.f};
    for (int64_t c = threadIdx.x; c < strip.columns; c += kThreads) {
      const float value = to_float(y[c]);
      if (value > mine.maximum) {
        mine.sum *= expf(mine.maximum - value);
        mine.maximum = value;
      }
      mine.sum += expf(value - finite_base(mine.maximum));
    }
    const MaximumAndSum all = fold_block(mine);
    if (threadIdx.x != 0) continue;
    const int64_t column = strip.targets[r] - strip.first_column;
    const bool here = strip.targets[r] >= 0 && column >= 0 && column < strip.columns;
    stats[3 * r] = all.maximum;
    stats[3 * r + 1] = all.sum;
    stats[3 * r + 2] = here ? to_float(y[column]) : minus_infinity();
  }
}

__global__ void merge_kernel(float* merged, const float* parts, int64_t num_parts, int64_t rows) {
  const int64_t r = blockIdx.x * int64_t{kThreads} + threadIdx.x;
  if (r >= rows) return;
  float m = minus_infinity(), z = 0, y = minus_infinity();
  for (int64_t p = 0; p < num_parts; ++p) m = fmaxf(m, parts[(p * rows + r) * 3]);
  const float base = finite_base(m);
  for (int64_t p = 0; p < num_parts; ++p) {
    const float* part = parts + (p * rows + r) * 3;
    z += part[1] * expf(part[0] - base);
    y = fmaxf(y, part[2]);
  }
  merged[3 * r] = m;
  merged[3 * r + 1] = z;
  merged[3 * r + 2] = y;
}

// One block: the sum is fp64, in one order.
__global__ void loss_kernel(LossRows args) {
  double mine = 0;
  for (int64_t r = threadIdx.x; r < args.rows; r += kThreads) {
    const float* s = args.stats + 3 * r;
    const bool counts = args.targets[r] >= 0;
    const double log_sum = double{s[0]} + log(double{s[1]});
    const double z_loss = args.z_loss_coeff == 0 ? 0.0 : args.z_loss_coeff * log_sum * log_sum;
    const double loss = counts ? log_sum - double{s[2]} + z_loss : 0.0;
    if (args.row_loss) args.row_loss[r] = static_cast<float>(loss);
    const double weight = args.row_weight ? double{args.row_weight[r]} : 1.0;
    if (counts && weight != 0) mine += weight * loss;
  }
  __shared__ double shared[kThreads];
  shared[threadIdx.x] = mine;
  for (int half = kThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) shared[threadIdx.x] += shared[threadIdx.x + half];
  }
  if (threadIdx.x == 0) *args.loss += shared[0];
}

template <class T>
__global__ void cap_kernel(T* logits, LogitStrip strip) {
  for (int64_t r = blockIdx.x; r < strip.rows; r += gridDim.x) {
    T* y = logits + r * strip.row_stride;
    for (int64_t c = threadIdx.x; c < strip.columns; c += kThreads) {
      y[c] = from_float<T>(strip.softcap * tanhf(to_float(y[c]) / strip.softcap));
    }
  }
}

template <class T>
__global__ void gradient_kernel(T* logits, LogitStrip strip, const float* stats, const float* row_weight) {
  for (int64_t r = blockIdx.x; r < strip.rows; r += gridDim.x) {
    T* y = logits + r * strip.row_stride;
    const float weight = row_weight[r];
    const bool counts = strip.targets[r] >= 0 && weight != 0;
    const float base = finite_base(stats[3 * r]), z = stats[3 * r + 1];
    const float share = strip.z_loss_coeff == 0 ? 1.f : 1.f + 2.f * strip.z_loss_coeff * (base + logf(z));
    const float factor = weight * share / z;
    const int64_t column = strip.targets[r] - strip.first_column;
    for (int64_t c = threadIdx.x; c < strip.columns; c += kThreads) {
      float gradient = 0;
      if (counts) {
        const float value = to_float(y[c]), e = expf(value - base);
        const float t = strip.softcap > 0 ? value / strip.softcap : 0.f;
        gradient = (c == column ? weight * (share * e / z - 1.f) : e * factor) * (1.f - t * t);
      }
      y[c] = from_float<T>(gradient);
    }
  }
}

}  // namespace

void soft_cap(const LogitStrip& strip, void* stream) {
  with_element(strip.element, [&](auto type) {
    using T = decltype(type);
    launch(cap_kernel<T>, num_blocks(strip.rows), kThreads, stream, static_cast<T*>(strip.logits), strip);
  });
  check_launch("soft_cap");
}

void logit_statistics(float* stats, const LogitStrip& strip, void* stream) {
  with_element(strip.element, [&](auto type) {
    using T = decltype(type);
    launch(statistics_kernel<T>, num_blocks(strip.rows), kThreads, stream, stats,
           static_cast<const T*>(strip.logits), strip);
  });
  check_launch("logit_statistics");
}

void merge_statistics(float* merged, const float* parts, int64_t num_parts, int64_t rows, void* stream) {
  const int blocks = static_cast<int>((rows + kThreads - 1) / kThreads);
  launch(merge_kernel, blocks, kThreads, stream, merged, parts, num_parts, rows);
  check_launch("merge_statistics");
}

void add_loss(const LossRows& args, void* stream) {
  launch(loss_kernel, 1, kThreads, stream, args);
  check_launch("add_loss");
}

void logits_to_gradient(const LogitStrip& strip, const float* stats, const float* row_weight, void* stream) {
  with_element(strip.element, [&](auto type) {
    using T = decltype(type);
    launch(gradient_kernel<T>, num_blocks(strip.rows), kThreads, stream, static_cast<T*>(strip.logits), strip,
           stats, row_weight);
  });
  check_launch("logits_to_gradient");
}

}  // namespace steppe::kernels::cuda
