// A team of threads per row: a warp for short rows (head norms), a block for long ones.
#include <cuda_runtime.h>

#include <cstdint>

#include "steppe/kernels/cluster_cuda.cuh"
#include "steppe/kernels/cuda_failure.h"
#include "steppe/kernels/element_cuda.cuh"
#include "steppe/kernels/launch_cuda.cuh"
#include "steppe/kernels/rms_norm_backend.h"

namespace steppe::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMostWarpColumns = 1024;
constexpr int kTileColumns = 32, kTileRows = 32;  // of a block that sums a weight gradient

// Σ over the team, in every thread of it, by a fixed tree.
template <int kTeam>
__device__ float team_sum(float value) {
  for (int step = kWarp / 2; step > 0; step /= 2) value += __shfl_xor_sync(kAllLanes, value, step);
  if constexpr (kTeam > kWarp) {
    __shared__ float of_warp[kTeam / kWarp];
    if (threadIdx.x % kWarp == 0) of_warp[threadIdx.x / kWarp] = value;
    __syncthreads();
    value = 0;
    for (int w = 0; w < kTeam / kWarp; ++w) value += of_warp[w];
    __syncthreads();
  }
  return value;
}

template <int kTeam>
__device__ int64_t first_row() {
  return blockIdx.x * int64_t{kThreads / kTeam} + threadIdx.x / kTeam;
}
template <int kTeam>
__device__ int64_t row_step() {
  return gridDim.x * int64_t{kThreads / kTeam};
}

template <class T, int kTeam>
__global__ void forward_kernel(NormForward args) {
  const T* weight = static_cast<const T*>(args.weight);
  for (int64_t row = first_row<kTeam>(); row < args.rows; row += row_step<kTeam>()) {
    const T* x = static_cast<const T*>(args.x) + row * args.x_stride;
    T* y = static_cast<T*>(args.y) + row * args.y_stride;
    float squares = 0;
    for (int64_t c = threadIdx.x % kTeam; c < args.columns; c += kTeam) {
      const float value = to_float(x[c]);
      squares += value * value;
    }
    const float inv_rms = 1.f / sqrtf(team_sum<kTeam>(squares) / static_cast<float>(args.columns) + args.eps);
    for (int64_t c = threadIdx.x % kTeam; c < args.columns; c += kTeam) {
      y[c] = from_float<T>(to_float(x[c]) * inv_rms * to_float(weight[c]));
    }
    if (threadIdx.x % kTeam == 0) args.inv_rms[row] = inv_rms;
  }
}

template <class T, int kTeam>
__global__ void backward_kernel(NormBackward args) {
  const T* weight = static_cast<const T*>(args.weight);
  for (int64_t row = first_row<kTeam>(); row < args.rows; row += row_step<kTeam>()) {
    const T* x = static_cast<const T*>(args.x) + row * args.x_stride;
    const T* dy = static_cast<const T*>(args.dy) + row * args.dy_stride;
    T* dx = static_cast<T*>(args.dx) + row * args.dx_stride;
    const float inv_rms = args.inv_rms[row];
    float products = 0;
    for (int64_t c = threadIdx.x % kTeam; c < args.columns; c += kTeam) {
      products += to_float(dy[c]) * to_float(weight[c]) * to_float(x[c]);
    }
    const float along_x =
        team_sum<kTeam>(products) / static_cast<float>(args.columns) * inv_rms * inv_rms * inv_rms;
    for (int64_t c = threadIdx.x % kTeam; c < args.columns; c += kTeam) {
      const float result = to_float(dy[c]) * to_float(weight[c]) * inv_rms - to_float(x[c]) * along_x;
      dx[c] = from_float<T>(args.add_to_dx ? to_float(dx[c]) + result : result);
    }
  }
}

// Columns blockIdx.x·32 …, and every (cluster size · 32)-th row per thread.
template <class T>
__global__ void weight_kernel(NormBackward args) {
  __shared__ float sums[kTileRows][kTileColumns];
  const int64_t column = blockIdx.x * int64_t{kTileColumns} + threadIdx.x;
  float sum = 0;
  if (column < args.columns) {
    for (int64_t row = blockIdx.y * int64_t{kTileRows} + threadIdx.y; row < args.rows;
         row += gridDim.y * int64_t{kTileRows}) {
      const float dy = to_float(static_cast<const T*>(args.dy)[row * args.dy_stride + column]);
      const float x = to_float(static_cast<const T*>(args.x)[row * args.x_stride + column]);
      sum += dy * (x * args.inv_rms[row]);
    }
  }
  sums[threadIdx.y][threadIdx.x] = sum;
  for (int half = kTileRows / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.y < half) sums[threadIdx.y][threadIdx.x] += sums[threadIdx.y + half][threadIdx.x];
  }
  const float total = sum_over_cluster(&sums[threadIdx.y][threadIdx.x], threadIdx.y == 0);
  if (blockIdx.y == 0 && threadIdx.y == 0 && column < args.columns) args.grad_weight[column] += total;
}

}  // namespace

void rms_norm_forward(const NormForward& args, void* stream) {
  with_element(args.element, [&](auto zero) {
    using T = decltype(zero);
    if (args.columns <= kMostWarpColumns) {
      launch(forward_kernel<T, kWarp>, num_blocks(args.rows, kThreads / kWarp), kThreads, stream, args);
    } else {
      launch(forward_kernel<T, kThreads>, num_blocks(args.rows), kThreads, stream, args);
    }
  });
  check_launch("rms_norm_forward");
}

void rms_norm_backward(const NormBackward& args, void* stream) {
  with_element(args.element, [&](auto zero) {
    using T = decltype(zero);
    if (args.grad_weight != nullptr) {  // first: dx may be dy
      const auto tiles = static_cast<unsigned>((args.columns + kTileColumns - 1) / kTileColumns);
      launch_clusters(weight_kernel<T>, tiles, num_cluster_blocks(), dim3(kTileColumns, kTileRows), stream,
                      args);
    }
    if (args.columns <= kMostWarpColumns) {
      launch(backward_kernel<T, kWarp>, num_blocks(args.rows, kThreads / kWarp), kThreads, stream, args);
    } else {
      launch(backward_kernel<T, kThreads>, num_blocks(args.rows), kThreads, stream, args);
    }
  });
  check_launch("rms_norm_backward");
}

}  // namespace steppe::kernels::cuda
