#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "steppe/kernels/cuda_failure.h"
#include "steppe/kernels/element_cuda.cuh"
#include "steppe/kernels/launch_cuda.cuh"
#include "steppe/kernels/permute_backend.h"

namespace steppe::kernels::cuda {
namespace {

constexpr int kThreads = 256;

// Host tables travel as kernel parameters (4 KiB at most), so that no device memory is taken.
constexpr int kExpertsPerLaunch = 256;
struct FirstSlots {
  int64_t first[kExpertsPerLaunch];
};

// One block per expert walks all ids in order and numbers its own: by warps with a ballot, by the block with
// the warps' counts. Every id is read once per expert, from the second-level cache.
__global__ void sort_kernel(SortRoutes args, FirstSlots slots, int first_expert) {
  constexpr int kNumWarps = kThreads / kWarp;
  __shared__ int count_of_warp[kNumWarps];
  const int expert = first_expert + blockIdx.x;
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  int64_t next = slots.first[blockIdx.x];
  for (int64_t begin = 0; begin < args.routes; begin += kThreads) {
    const int64_t r = begin + threadIdx.x;
    const bool mine = r < args.routes && args.ids[r] == expert;
    const unsigned ballot = __ballot_sync(kAllLanes, mine);
    if (lane == 0) count_of_warp[warp] = __popc(ballot);
    __syncthreads();
    int ahead = __popc(ballot & ((1u << lane) - 1)), total = 0;
    for (int w = 0; w < kNumWarps; ++w) {
      if (w < warp) ahead += count_of_warp[w];
      total += count_of_warp[w];
    }
    if (mine) {
      const int64_t slot = next + ahead;
      args.slot_of_route[r] = static_cast<int32_t>(slot);
      args.route_of_slot[slot] = static_cast<int32_t>(r);
    }
    next += total;
    __syncthreads();
  }
}

// Rows as words of W, the widest that pointers, strides and width allow.
template <class W>
__device__ void copy_row(char* out, const char* in, int64_t bytes) {
  auto* to = reinterpret_cast<W*>(out);
  const auto* from = reinterpret_cast<const W*>(in);
  for (int64_t i = threadIdx.x; i < bytes / static_cast<int64_t>(sizeof(W)); i += kThreads) to[i] = from[i];
}

template <class W>
__global__ void gather_rows_kernel(ByteRows rows, const int32_t* index, int64_t num_rows, int64_t divisor) {
  for (int64_t i = blockIdx.x; i < num_rows; i += gridDim.x)
    copy_row<W>(rows.out + i * rows.out_stride, rows.in + index[i] / divisor * rows.in_stride, rows.row);
}

constexpr int kRowBlocksPerLaunch = 128;
struct RowBlocks {
  RowBlock block[kRowBlocksPerLaunch];
};

template <class W>
__global__ void copy_blocks_kernel(ByteRows rows, RowBlocks blocks) {
  const RowBlock block = blocks.block[blockIdx.x];
  for (int64_t i = blockIdx.y; i < block.rows; i += gridDim.y)
    copy_row<W>(rows.out + (block.to + i) * rows.out_stride, rows.in + (block.from + i) * rows.in_stride,
                rows.row);
}

// body(W{}) with the widest word that fits.
template <class Body>
void with_word(const ByteRows& rows, const Body& body) {
  const auto bits = reinterpret_cast<uintptr_t>(rows.out) | reinterpret_cast<uintptr_t>(rows.in) |
                    static_cast<uintptr_t>(rows.row | rows.out_stride | rows.in_stride);
  if (bits % 16 == 0)
    body(uint4{});
  else if (bits % 4 == 0)
    body(uint32_t{});
  else if (bits % 2 == 0)
    body(uint16_t{});
  else
    body(uint8_t{});
}

template <class W>
__global__ void gather_values_kernel(GatherValues args) {
  const int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x;
  if (i < args.n)
    static_cast<W*>(args.out)[i * args.out_stride] =
        static_cast<const W*>(args.values)[args.index[i] * args.values_stride];
}

template <class W>
void gather_values_of(const GatherValues& args, void* stream) {
  const int blocks = static_cast<int>((args.n + kThreads - 1) / kThreads);
  launch(gather_values_kernel<W>, blocks, kThreads, stream, args);
}

// One block per token; every thread sums its columns over the listings in order.
template <class Y, class R>
__global__ void combine_kernel(CombineRows args) {
  for (int64_t t = blockIdx.x; t < args.tokens; t += gridDim.x) {
    Y* y = static_cast<Y*>(args.y) + t * args.y_stride;
    const int32_t* slots = args.slot_of_route + t * args.k;
    for (int64_t c = threadIdx.x; c < args.width; c += kThreads) {
      float total = 0;
      for (int64_t j = 0; j < args.k; ++j)
        total += to_float(static_cast<const R*>(args.rows)[slots[j] * args.rows_stride + c]);
      y[c] = from_float<Y>(args.add ? to_float(y[c]) + total : total);
    }
  }
}

}  // namespace

void sort_routes(const SortRoutes& args, void* stream) {
  const int experts = static_cast<int>(args.first_slot_of_expert.size());
  for (int first = 0; first < experts; first += kExpertsPerLaunch) {
    const int count = std::min(kExpertsPerLaunch, experts - first);
    FirstSlots slots{};
    std::copy_n(args.first_slot_of_expert.data() + first, count, slots.first);
    launch(sort_kernel, count, kThreads, stream, args, slots, first);
  }
  check_launch("sort_routes");
}

void gather_rows(const ByteRows& rows, const int32_t* index, int64_t num_rows, int64_t divisor,
                 void* stream) {
  with_word(rows, [&](auto word) {
    launch(gather_rows_kernel<decltype(word)>, num_blocks(num_rows), kThreads, stream, rows, index, num_rows,
           divisor);
  });
  check_launch("gather_rows_of_routes");
}

void gather_values(const GatherValues& args, void* stream) {
  if (args.element_bytes == 2)
    gather_values_of<uint16_t>(args, stream);
  else if (args.element_bytes == 4)
    gather_values_of<uint32_t>(args, stream);
  else
    gather_values_of<uint64_t>(args, stream);
  check_launch("gather_values");
}

void combine_rows(const CombineRows& args, void* stream) {
  const unsigned blocks = num_blocks(args.tokens);
  if (args.rows_element == Element::kFloat32)
    launch(combine_kernel<float, float>, blocks, kThreads, stream, args);
  else if (args.y_element == Element::kFloat32)
    launch(combine_kernel<float, __nv_bfloat16>, blocks, kThreads, stream, args);
  else
    launch(combine_kernel<__nv_bfloat16, __nv_bfloat16>, blocks, kThreads, stream, args);
  check_launch("combine_rows");
}

void copy_row_blocks(const ByteRows& rows, std::span<const RowBlock> blocks, void* stream) {
  for (size_t first = 0; first < blocks.size(); first += kRowBlocksPerLaunch) {
    const size_t count = std::min<size_t>(kRowBlocksPerLaunch, blocks.size() - first);
    RowBlocks some{};
    std::copy_n(blocks.data() + first, count, some.block);
    const dim3 grid(static_cast<unsigned>(count), 64);
    with_word(rows, [&](auto word) {
      launch(copy_blocks_kernel<decltype(word)>, grid, kThreads, stream, rows, some);
    });
  }
  check_launch("copy_row_blocks");
}

}  // namespace steppe::kernels::cuda
