#include <fmt/format.h>

#include "steppe/base/error.h"
#include "steppe/kernels/backend.h"
#include "steppe/kernels/cuda_failure.h"

namespace steppe::kernels {

void* current_cuda_stream(const at::Tensor&) {
  cuda::throw_missing("current_cuda_stream");
}

namespace cuda {

void throw_missing(const char* place) {
  throw RuntimeFailure(fmt::format("[{}] got a CUDA tensor, but Steppe was built without CUDA", place));
}

}  // namespace cuda
}  // namespace steppe::kernels
