#include <cuda_runtime.h>

#include <cstdint>

#include "steppe/kernels/clamp_backend.h"
#include "steppe/kernels/cuda_failure.h"
#include "steppe/kernels/element_cuda.cuh"
#include "steppe/kernels/launch_cuda.cuh"

namespace steppe::kernels::cuda {
namespace {

constexpr int kThreads = 256;

__device__ int64_t first_index() {
  return blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
}
__device__ int64_t index_step() {
  return gridDim.x * int64_t{blockDim.x};
}

template <class T>
__global__ void clamp_kernel(T* out, const T* x, int64_t size, float limit) {
  for (int64_t i = first_index(); i < size; i += index_step()) {
    const float value = to_float(x[i]);
    const float low = value < -limit ? -limit : value;
    out[i] = from_float<T>(low > limit ? limit : low);
  }
}

template <class T>
__global__ void clamp_backward_kernel(T* dx, const T* x, int64_t size, float limit) {
  for (int64_t i = first_index(); i < size; i += index_step()) {
    const float value = to_float(x[i]);
    if (value > limit || value < -limit) dx[i] = from_float<T>(0.0F);
  }
}

}  // namespace

void clamp_forward(const ClampArgs& args, void* stream) {
  with_element(args.element, [&](auto zero) {
    using T = decltype(zero);
    launch(clamp_kernel<T>, num_blocks(args.size, kThreads), kThreads, stream, static_cast<T*>(args.out),
           static_cast<const T*>(args.x), args.size, args.limit);
  });
  check_launch("clamp_forward");
}

void clamp_backward(const ClampArgs& args, void* stream) {
  with_element(args.element, [&](auto zero) {
    using T = decltype(zero);
    launch(clamp_backward_kernel<T>, num_blocks(args.size, kThreads), kThreads, stream,
           static_cast<T*>(args.out), static_cast<const T*>(args.x), args.size, args.limit);
  });
  check_launch("clamp_backward");
}

}  // namespace steppe::kernels::cuda
