// Where a kernel runs. Dispatch files (x.cpp) check shapes and hand raw pointers, sizes and the stream to
// x_cpu.cpp or x_cuda.cu; x_cuda_missing.cpp stands in where no CUDA toolkit was found, and throws.
#pragma once

#include <ATen/core/Tensor.h>

namespace steppe::kernels {

// The current CUDA stream of the tensor's device, as an opaque cudaStream_t.
void* current_cuda_stream(const at::Tensor& x);

}  // namespace steppe::kernels
