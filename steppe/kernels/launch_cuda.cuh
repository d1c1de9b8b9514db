// How every .cu file launches: by the runtime's function and not by <<<…>>>, so that the sources are C++,
// which tests/cuda_on_cpu compiles for a CPU.
#pragma once

#include <cuda_runtime.h>

namespace steppe::kernels::cuda {

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
