// How every .cu file launches: by the runtime's function and not by <<<…>>>, so that the sources are C++,
// which tests/cuda_on_cpu compiles for a CPU.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace steppe::kernels::cuda {

// For kernels whose blocks go on to further items: a block for so many, or what fills the device a few times.
inline unsigned num_blocks(int64_t items, int64_t items_per_block = 1) {
  constexpr int64_t kMostOfMultiprocessor = 32;
  int device = 0, multiprocessors = 1;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
  const int64_t wanted = (items + items_per_block - 1) / items_per_block;
  const int64_t most = kMostOfMultiprocessor * multiprocessors;
  return static_cast<unsigned>(wanted < most ? wanted : most);
}

// kernel(arguments…) on `stream`, a cudaStream_t. check_launch() tells whether it could be launched.
template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), dim3 blocks, dim3 threads, void* stream,
            const Arguments&... arguments) {
  cudaLaunchConfig_t config = {};
  config.gridDim = blocks;
  config.blockDim = threads;
  config.stream = static_cast<cudaStream_t>(stream);
  cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...);
}

}  // namespace steppe::kernels::cuda
