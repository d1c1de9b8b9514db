// What the .cu files use of the CUDA toolkit, for a CPU: kernels are functions that
// tests/cuda_on_cpu/emulation.h runs.
#pragma once

#include <math.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <source_location>

#include "tests/cuda_on_cpu/emulation.h"

#define __CUDA_ARCH__ 900
#define __global__
#define __device__
// A block runs on one thread of the CPU, so this is its own; the blocks that follow find what it left.
#define __shared__ static thread_local

struct alignas(16) uint4 {
  uint32_t x, y, z, w;
};

using cudaStream_t = void*;
enum cudaError_t { cudaSuccess, cudaErrorInvalidValue };
enum cudaDeviceAttr { cudaDevAttrComputeCapabilityMajor, cudaDevAttrMultiProcessorCount };
enum cudaLaunchAttributeID { cudaLaunchAttributeClusterDimension };
struct cudaLaunchAttribute {
  cudaLaunchAttributeID id;
  struct {
    struct {
      unsigned x, y, z;
    } clusterDim;
  } val;
};
struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  size_t dynamicSmemBytes;
  cudaStream_t stream;
  cudaLaunchAttribute* attrs;
  unsigned numAttrs;
};

inline cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  // One multiprocessor: its blocks go on to further items early.
  *value = attribute == cudaDevAttrMultiProcessorCount ? 1 : cuda_on_cpu::compute_capability;
  return cudaSuccess;
}
inline cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t) {
  std::memset(to, value, bytes);
  return cudaSuccess;
}

template <class... Parameters, class... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               Arguments&&... arguments) {
  const auto cluster =
      config->numAttrs > 0 ? config->attrs->val.clusterDim : decltype(config->attrs->val.clusterDim){1, 1, 1};
  cuda_on_cpu::run(config->gridDim, config->blockDim, {cluster.x, cluster.y, cluster.z},
                   [&] { kernel(arguments...); });
  return cudaSuccess;
}

inline void __syncthreads(std::source_location where = std::source_location::current()) {
  cuda_on_cpu::wait_for_block(where.line());
}
inline void __syncwarp(std::source_location where = std::source_location::current()) {
  cuda_on_cpu::exchange_in_warp(0, where.line());
}
template <class T>
T __shfl_xor_sync(unsigned lanes, T value, int step,
                  std::source_location where = std::source_location::current()) {
  static_assert(sizeof(T) == 4);
  cuda_on_cpu::expect(lanes == ~0u, "a shuffle of some lanes only");
  const auto& values = cuda_on_cpu::exchange_in_warp(std::bit_cast<uint32_t>(value), where.line());
  return std::bit_cast<T>(static_cast<uint32_t>(values[cuda_on_cpu::lane ^ step]));
}
inline unsigned __ballot_sync(unsigned lanes, bool mine,
                              std::source_location where = std::source_location::current()) {
  cuda_on_cpu::expect(lanes == ~0u, "a ballot of some lanes only");
  const auto& values = cuda_on_cpu::exchange_in_warp(mine, where.line());
  unsigned ballot = 0;
  for (int lane = 0; lane < cuda_on_cpu::kWarp; ++lane) ballot |= static_cast<unsigned>(values[lane]) << lane;
  return ballot;
}
// The threads of one launch take turns.
inline void atomicAdd(unsigned long long* to, unsigned long long value) {
  *to += value;
}

inline int __popc(unsigned x) {
  return std::popcount(x);
}
inline float __int_as_float(int x) {
  return std::bit_cast<float>(x);
}
// Whatever else the compiler contracts, these are rounded on their own.
inline float rounded(float x) {
  asm volatile("" : "+m"(x));
  return x;
}
inline float __fmul_rn(float a, float b) {
  return rounded(a * b);
}
inline float __fadd_rn(float a, float b) {
  return rounded(a + b);
}
inline float __fdiv_rn(float a, float b) {
  return rounded(a / b);
}
inline float __fsqrt_rn(float x) {
  return rounded(sqrtf(x));
}
inline float __fmaf_rn(float a, float b, float c) {
  return fmaf(a, b, c);
}
