// Sums by fixed trees: over the rows in strips that a block's warps share, over a row by a block.
#include <cuda_runtime.h>

#include <cstdint>

#include "steppe/kernels/cuda_failure.h"
#include "steppe/kernels/element_cuda.cuh"
#include "steppe/kernels/launch_cuda.cuh"
#include "steppe/kernels/row_bias_backend.h"

namespace steppe::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kStrips = kThreads / kWarp;

__device__ float weight_of(const RowBias& args, int64_t row) {
  return args.row_weight != nullptr ? args.row_weight[row] : 1.f;
}

template <class T>
__global__ void add_row_bias_kernel(RowBias args) {
  const T* bias = static_cast<const T*>(args.bias);
  for (int64_t r = blockIdx.x; r < args.num_rows; r += gridDim.x) {
    T* row = static_cast<T*>(args.rows) + r * args.stride;
    const float weight = weight_of(args, r);
    for (int64_t c = threadIdx.x; c < args.columns; c += kThreads)
      row[c] = from_float<T>(fmaf(to_float(bias[c]), weight, to_float(row[c])));
  }
}

// A block for 32 columns: warp s sums rows s, s + 8, …; the first adds the strips up.
template <class T>
__global__ void add_column_sums_kernel(RowBias args) {
  __shared__ float sums[kStrips][kWarp];
  const int lane = threadIdx.x % kWarp, strip = threadIdx.x / kWarp;
  const int64_t c = blockIdx.x * int64_t{kWarp} + lane;
  float total = 0;
  if (c < args.columns)
    for (int64_t r = strip; r < args.num_rows; r += kStrips)
      total =
          fmaf(to_float(static_cast<const T*>(args.rows)[r * args.stride + c]), weight_of(args, r), total);
  sums[strip][lane] = total;
  __syncthreads();
  if (strip != 0 || c >= args.columns) return;
  for (int s = 1; s < kStrips; ++s) total += sums[s][lane];
  static_cast<float*>(args.bias)[c] += total;
}

template <class T>
__global__ void add_row_dots_kernel(RowBias args) {
  __shared__ float sums[kThreads];
  const T* bias = static_cast<const T*>(args.bias);
  for (int64_t r = blockIdx.x; r < args.num_rows; r += gridDim.x) {
    const T* row = static_cast<const T*>(args.rows) + r * args.stride;
    float total = 0;
    for (int64_t c = threadIdx.x; c < args.columns; c += kThreads)
      total = fmaf(to_float(row[c]), to_float(bias[c]), total);
    sums[threadIdx.x] = total;
    for (int half = kThreads / 2; half > 0; half /= 2) {
      __syncthreads();
      if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
    }
    if (threadIdx.x == 0) args.out[r] += sums[0];
    __syncthreads();
  }
}

}  // namespace

void add_row_bias(const RowBias& args, void* stream) {
  with_element(args.element, [&](auto zero) {
    launch(add_row_bias_kernel<decltype(zero)>, num_blocks(args.num_rows), kThreads, stream, args);
  });
  check_launch("add_row_bias");
}

void add_column_sums(const RowBias& args, void* stream) {
  const auto blocks = static_cast<unsigned>((args.columns + kWarp - 1) / kWarp);
  with_element(args.element, [&](auto zero) {
    launch(add_column_sums_kernel<decltype(zero)>, blocks, kThreads, stream, args);
  });
  check_launch("add_column_sums");
}

void add_row_dots(const RowBias& args, void* stream) {
  with_element(args.element, [&](auto zero) {
    launch(add_row_dots_kernel<decltype(zero)>, num_blocks(args.num_rows), kThreads, stream, args);
  });
  check_launch("add_row_dots");
}

}  // namespace steppe::kernels::cuda
