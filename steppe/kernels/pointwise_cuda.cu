#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "steppe/kernels/cluster_cuda.cuh"
#include "steppe/kernels/cuda_failure.h"
#include "steppe/kernels/element_cuda.cuh"
#include "steppe/kernels/launch_cuda.cuh"
#include "steppe/kernels/pointwise_backend.h"

namespace steppe::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kSumThreads = 1024;

__device__ int64_t first_index() {
  return blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
}
__device__ int64_t index_step() {
  return gridDim.x * int64_t{blockDim.x};
}

template <class T>
__global__ void add_kernel(T* out, const T* a, const T* b, int64_t size) {
  for (int64_t i = first_index(); i < size; i += index_step()) {
    out[i] = from_float<T>(to_float(a[i]) + to_float(b[i]));
  }
}

template <class T>
__global__ void scale_kernel(T* x, int64_t size, float factor) {
  for (int64_t i = first_index(); i < size; i += index_step()) x[i] = from_float<T>(to_float(x[i]) * factor);
}

template <class To, class From>
__global__ void add_to_kernel(To* to, const From* from, RowPairs rows) {
  const int64_t size = rows.outer * rows.inner * rows.columns;
  for (int64_t i = first_index(); i < size; i += index_step()) {
    const int64_t column = i % rows.columns, row = i / rows.columns;
    const int64_t outer = row / rows.inner, inner = row % rows.inner;
    To& target = to[outer * rows.to_outer + inner * rows.to_inner + column];
    const From source = from[outer * rows.from_outer + inner * rows.from_inner + column];
    target = from_float<To>(to_float(target) + to_float(source));
  }
}

template <class To, class From>
void launch_add_to(const AddTo& args, void* stream) {
  const int64_t size = args.rows.outer * args.rows.inner * args.rows.columns;
  launch(add_to_kernel<To, From>, num_blocks(size, kThreads), kThreads, stream, static_cast<To*>(args.to),
         static_cast<const From*>(args.from), args.rows);
}

// As many parts as one launch carries in its parameters.
struct Parts {
  static constexpr int kMost = 64;
  const void* at[kMost];
  int count = 0;
};

template <class T>
__global__ void add_parts_kernel(float* accumulator, Parts parts, int64_t size) {
  for (int64_t i = first_index(); i < size; i += index_step()) {
    float sum = accumulator[i];
    for (int p = 0; p < parts.count; ++p) sum += to_float(static_cast<const T*>(parts.at[p])[i]);
    accumulator[i] = sum;
  }
}

// One cluster: strided sums of each thread, folded by a tree in each block, then over the blocks.
template <class T>
__global__ void sum_of_squares_kernel(double* out, const T* x, int64_t size) {
  __shared__ double sums[kSumThreads];
  double sum = 0;
  const int64_t step = int64_t{gridDim.y} * kSumThreads;
  for (int64_t i = blockIdx.y * int64_t{kSumThreads} + threadIdx.x; i < size; i += step) {
    const double value = to_float(x[i]);
    sum += value * value;
  }
  sums[threadIdx.x] = sum;
  for (int half = kSumThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
  }
  const double total = sum_over_cluster(&sums[threadIdx.x], threadIdx.x == 0);
  if (blockIdx.y == 0 && threadIdx.x == 0) *out += total;
}

// Counts are integers: the order of the additions does not matter.
template <class T>
__global__ void nonfinite_kernel(unsigned long long* out, const T* x, int64_t size) {
  unsigned long long count = 0;
  for (int64_t i = first_index(); i < size; i += index_step()) count += isfinite(to_float(x[i])) ? 0 : 1;
  if (count != 0) atomicAdd(out, count);
}

}  // namespace

void add(void* out, const void* b, const ConstArray& a, void* stream) {
  with_element(a.element, [&](auto zero) {
    using T = decltype(zero);
    launch(add_kernel<T>, num_blocks(a.size, kThreads), kThreads, stream, static_cast<T*>(out),
           static_cast<const T*>(a.x), static_cast<const T*>(b), a.size);
  });
  check_launch("add");
}

void scale(void* x, Element element, int64_t size, float factor, void* stream) {
  with_element(element, [&](auto zero) {
    launch(scale_kernel<decltype(zero)>, num_blocks(size, kThreads), kThreads, stream,
           static_cast<decltype(zero)*>(x), size, factor);
  });
  check_launch("scale");
}

void add_to(const AddTo& args, void* stream) {
  if (args.to_element == Element::kBfloat16) {
    launch_add_to<__nv_bfloat16, __nv_bfloat16>(args, stream);
  } else if (args.from_element == Element::kBfloat16) {
    launch_add_to<float, __nv_bfloat16>(args, stream);
  } else {
    launch_add_to<float, float>(args, stream);
  }
  check_launch("add_to");
}

void add_parts_in_order(const AddParts& args, void* stream) {
  for (size_t first = 0; first < args.parts.size(); first += Parts::kMost) {
    Parts parts;
    parts.count = static_cast<int>(std::min<size_t>(Parts::kMost, args.parts.size() - first));
    std::copy_n(args.parts.begin() + first, parts.count, parts.at);
    with_element(args.part_element, [&](auto zero) {
      launch(add_parts_kernel<decltype(zero)>, num_blocks(args.size, kThreads), kThreads, stream,
             args.accumulator, parts, args.size);
    });
    check_launch("add_parts_in_order");
  }
}

void add_sum_of_squares(double* out, const ConstArray& x, void* stream) {
  with_element(x.element, [&](auto zero) {
    using T = decltype(zero);
    launch_clusters(sum_of_squares_kernel<T>, 1, num_cluster_blocks(), dim3(kSumThreads), stream, out,
                    static_cast<const T*>(x.x), x.size);
  });
  check_launch("add_sum_of_squares");
}

void add_nonfinite_count(int64_t* out, const ConstArray& x, void* stream) {
  with_element(x.element, [&](auto zero) {
    launch(nonfinite_kernel<decltype(zero)>, num_blocks(x.size, kThreads), kThreads, stream,
           reinterpret_cast<unsigned long long*>(out), static_cast<const decltype(zero)*>(x.x), x.size);
  });
  check_launch("add_nonfinite_count");
}

}  // namespace steppe::kernels::cuda
