// A block per row, so that the gradient of a row's weight is summed by a fixed tree.
#include <cuda_runtime.h>

#include <cstdint>

#include "steppe/kernels/cuda_failure.h"
#include "steppe/kernels/element_cuda.cuh"
#include "steppe/kernels/launch_cuda.cuh"
#include "steppe/kernels/swiglu_backend.h"

namespace steppe::kernels::cuda {
namespace {

constexpr int kThreads = 256;

__device__ float sigmoid(float x) {
  return 1.f / (1.f + expf(-x));
}

// Gate and up as the activation sees them, and whether each still depends on its input.
struct Gated {
  float gate, up;
  bool gate_moves, up_moves;
};

template <class T>
__device__ Gated gated(const T* gate, const T* up, const SwigluShape& shape, int64_t columns, int64_t c) {
  float g = to_float(gate[c]), u = to_float(up[c]);
  if (shape.bias != nullptr) {
    const T* bias = static_cast<const T*>(shape.bias);
    g += to_float(bias[c]), u += to_float(bias[columns + c]);
  }
  const float limit = shape.form.limit;
  // Comparisons that a NaN passes through, unlike fminf.
  const float low_u = u < -limit ? -limit : u;
  return {g > limit ? limit : g, (low_u > limit ? limit : low_u) + shape.form.up_offset, g <= limit,
          u >= -limit && u <= limit};
}

template <class T>
__global__ void forward_kernel(SwigluForward args) {
  for (int64_t row = blockIdx.x; row < args.rows; row += gridDim.x) {
    const T* gate = static_cast<const T*>(args.gate_up) + row * args.gate_up_stride;
    const T* up = gate + args.columns;
    T* a = static_cast<T*>(args.a) + row * args.a_stride;
    const float weight = args.row_weight != nullptr ? args.row_weight[row] : 1.f;
    for (int64_t c = threadIdx.x; c < args.columns; c += kThreads) {
      const Gated at = gated(gate, up, args.shape, args.columns, c);
      const float s = sigmoid(at.gate * args.shape.form.gate_scale);
      a[c] = from_float<T>(at.gate * s * at.up * weight);
    }
  }
}

template <class T>
__global__ void backward_kernel(SwigluBackward args) {
  __shared__ float sums[kThreads];
  for (int64_t row = blockIdx.x; row < args.rows; row += gridDim.x) {
    T* gate = static_cast<T*>(args.gate_up) + row * args.gate_up_stride;
    T* up = gate + args.columns;
    T* da = static_cast<T*>(args.da) + row * args.da_stride;
    const float weight = args.row_weight != nullptr ? args.row_weight[row] : 1.f;
    float along_weight = 0;
    for (int64_t c = threadIdx.x; c < args.columns; c += kThreads) {
      const Gated at = gated(gate, up, args.shape, args.columns, c);
      const float scale = args.shape.form.gate_scale, d = to_float(da[c]);
      const float s = sigmoid(at.gate * scale), glu = at.gate * s, activation = glu * at.up,
                  weighted = d * weight;
      along_weight += d * activation;
      up[c] = from_float<T>(at.up_moves ? weighted * glu : 0.f);
      gate[c] = from_float<T>(at.gate_moves ? weighted * at.up * (s + glu * scale * (1.f - s)) : 0.f);
      da[c] = from_float<T>(activation * weight);
    }
    if (args.grad_row_weight == nullptr) continue;
    sums[threadIdx.x] = along_weight;
    for (int half = kThreads / 2; half > 0; half /= 2) {
      __syncthreads();
      if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
    }
    if (threadIdx.x == 0) args.grad_row_weight[row] = sums[0];
    __syncthreads();
  }
}

}  // namespace

void swiglu_forward(const SwigluForward& args, void* stream) {
  with_element(args.element, [&](auto zero) {
    launch(forward_kernel<decltype(zero)>, num_blocks(args.rows), kThreads, stream, args);
  });
  check_launch("swiglu_forward");
}

void swiglu_backward(const SwigluBackward& args, void* stream) {
  with_element(args.element, [&](auto zero) {
    launch(backward_kernel<decltype(zero)>, num_blocks(args.rows), kThreads, stream, args);
  });
  check_launch("swiglu_backward_inplace");
}

}  // namespace steppe::kernels::cuda
