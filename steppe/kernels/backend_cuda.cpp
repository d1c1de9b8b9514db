#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include "steppe/base/error.h"
#include "steppe/kernels/backend.h"
#include "steppe/kernels/cuda_failure.h"

namespace steppe::kernels {

void* current_cuda_stream(const at::Tensor& x) {
  return c10::cuda::getCurrentCUDAStream(x.device().index()).stream();
}

namespace cuda {

void check_launch(const char* place) {
  const cudaError_t error = cudaGetLastError();
  STEPPE_CHECK(error == cudaSuccess, "[{}] the CUDA launch failed: {}", place, cudaGetErrorString(error));
}

void throw_missing(const char* place) {
  throw InternalError(fmt::format("[{}] the stand-in of a build without CUDA was called", place));
}

}  // namespace cuda
}  // namespace steppe::kernels
