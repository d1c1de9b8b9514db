#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "steppe/kernels/cuda_failure.h"
#include "steppe/kernels/element_cuda.cuh"
#include "steppe/kernels/launch_cuda.cuh"
#include "steppe/kernels/rotary_backend.h"

namespace steppe::kernels::cuda {
namespace {

constexpr int kThreads = 256;

// A thread per pair.
template <class T>
__global__ void rotary_kernel(Rotary args) {
  const int64_t size = args.tokens * args.heads * args.half;
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < size;
       i += gridDim.x * int64_t{kThreads}) {
    const int64_t pair = i % args.half, head = i / args.half % args.heads, token = i / args.half / args.heads;
    T* x = static_cast<T*>(args.x) + token * args.token_stride + head * args.head_stride + pair;
    const float cos = args.cos[token * args.half + pair];
    const float sin = args.inverse ? -args.sin[token * args.half + pair] : args.sin[token * args.half + pair];
    const float a = to_float(x[0]), b = to_float(x[args.half]);
    x[0] = from_float<T>(a * cos - b * sin);
    x[args.half] = from_float<T>(b * cos + a * sin);
  }
}

// Travels as a parameter of the launch: nothing to copy, nothing to keep alive.
struct Frequencies {
  float inverse[kMostFrequencies];
  int64_t count;
};

__global__ void tables_kernel(float* cos, float* sin, const int32_t* positions, Frequencies frequencies,
                              int64_t tokens, float factor) {
  const int64_t size = tokens * frequencies.count;
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < size;
       i += gridDim.x * int64_t{kThreads}) {
    const float angle =
        static_cast<float>(positions[i / frequencies.count]) * frequencies.inverse[i % frequencies.count];
    cos[i] = cosf(angle) * factor;
    sin[i] = sinf(angle) * factor;
  }
}

}  // namespace

void rotary(const Rotary& args, void* stream) {
  with_element(args.element, [&](auto zero) {
    launch(rotary_kernel<decltype(zero)>, num_blocks(args.tokens * args.heads * args.half, kThreads),
           kThreads, stream, args);
  });
  check_launch("rotary");
}

void rotary_tables(const RotaryTables& args, void* stream) {
  Frequencies frequencies;
  std::copy(args.inverse_frequencies.begin(), args.inverse_frequencies.end(), frequencies.inverse);
  frequencies.count = static_cast<int64_t>(args.inverse_frequencies.size());
  launch(tables_kernel, num_blocks(args.tokens * frequencies.count, kThreads), kThreads, stream, args.cos,
         args.sin, args.positions, frequencies, args.tokens, args.attention_factor);
  check_launch("rotary_tables");
}

}  // namespace steppe::kernels::cuda
