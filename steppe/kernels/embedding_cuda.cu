#include <cuda_runtime.h>

#include <cstdint>

#include "steppe/kernels/cuda_failure.h"
#include "steppe/kernels/element_cuda.cuh"
#include "steppe/kernels/embedding_backend.h"
#include "steppe/kernels/launch_cuda.cuh"

namespace steppe::kernels::cuda {
namespace {

constexpr int kThreads = 256;
// Blocks that share the table's rows among them in the backward pass.
constexpr int kOwners = 1024;

template <class W>
__global__ void forward_kernel(EmbeddingForward args) {
  const int64_t words = args.row_bytes / static_cast<int64_t>(sizeof(W));
  for (int64_t i = blockIdx.x; i < args.rows; i += gridDim.x) {
    auto* out = reinterpret_cast<W*>(args.out + i * args.out_stride_bytes);
    const auto* row =
        reinterpret_cast<const W*>(args.table + (args.ids[i] - args.first_row) * args.row_bytes);
    for (int64_t w = threadIdx.x; w < words; w += kThreads) out[w] = row[w];
  }
}

// Block b owns the table rows that are b modulo the number of blocks. It walks all ids in order, lists its
// own among each 256 by ballots, and adds those rows one after the other: no atomics, one order.
template <class T>
__global__ void backward_kernel(EmbeddingBackward args) {
  constexpr int kNumWarps = kThreads / kWarp;
  __shared__ int count_of_warp[kNumWarps];
  __shared__ int listed[kThreads];
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  for (int64_t begin = 0; begin < args.rows; begin += kThreads) {
    const int64_t i = begin + threadIdx.x;
    const bool mine = i < args.rows && (args.ids[i] - args.first_row) % gridDim.x == blockIdx.x;
    const unsigned ballot = __ballot_sync(kAllLanes, mine);
    if (lane == 0) count_of_warp[warp] = __popc(ballot);
    __syncthreads();
    int ahead = __popc(ballot & ((1u << lane) - 1)), total = 0;
    for (int w = 0; w < kNumWarps; ++w) {
      if (w < warp) ahead += count_of_warp[w];
      total += count_of_warp[w];
    }
    if (mine) listed[ahead] = threadIdx.x;
    __syncthreads();
    for (int n = 0; n < total; ++n) {
      const int64_t row = begin + listed[n];
      float* grad = args.grad_table + (args.ids[row] - args.first_row) * args.width;
      const T* dy = static_cast<const T*>(args.dy) + row * args.dy_stride;
      for (int64_t c = threadIdx.x; c < args.width; c += kThreads) grad[c] += to_float(dy[c]);
    }
  }
}

}  // namespace

void embedding_forward(const EmbeddingForward& args, void* stream) {
  const unsigned blocks = num_blocks(args.rows);
  const auto bits = reinterpret_cast<uintptr_t>(args.out) | reinterpret_cast<uintptr_t>(args.table) |
                    static_cast<uintptr_t>(args.row_bytes | args.out_stride_bytes);
  if (bits % 16 == 0)
    launch(forward_kernel<uint4>, blocks, kThreads, stream, args);
  else if (bits % 4 == 0)
    launch(forward_kernel<uint32_t>, blocks, kThreads, stream, args);
  else if (bits % 2 == 0)
    launch(forward_kernel<uint16_t>, blocks, kThreads, stream, args);
  else
    launch(forward_kernel<uint8_t>, blocks, kThreads, stream, args);
  check_launch("embedding_forward");
}

void embedding_backward(const EmbeddingBackward& args, void* stream) {
  with_element(args.element,
               [&](auto type) { launch(backward_kernel<decltype(type)>, kOwners, kThreads, stream, args); });
  check_launch("embedding_backward");
}

}  // namespace steppe::kernels::cuda
