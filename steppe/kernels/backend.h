// Where a kernel runs. Dispatch files (x.cpp) check shapes and hand raw pointers, sizes and the stream to
// x_cpu.cpp or x_cuda.cu; x_cuda_missing.cpp stands in where no CUDA toolkit was found, and throws.
#pragma once

#include <ATen/core/Tensor.h>

#include <string_view>

#include "steppe/kernels/element.h"

namespace steppe::kernels {

// The current CUDA stream of the tensor's device, as an opaque cudaStream_t.
// RuntimeFailure in a build without CUDA.
void* current_cuda_stream(const at::Tensor& x);

// The tensor's element type; `place` and `name` are for the message of the ValueError it throws when that is
// neither float32 nor bfloat16.
Element element_of(const at::Tensor& x, std::string_view place, std::string_view name);

// ValueError unless x has the given dtype.
void check_dtype(const at::Tensor& x, at::ScalarType dtype, std::string_view place, std::string_view name);

// ValueError unless x is defined and lies where `other` does.
void check_device(const at::Tensor& x, const at::Tensor& other, std::string_view place,
                  std::string_view name);

// Rows of a 2-D tensor: the stride between rows, in elements. ValueError unless the last dimension is
// contiguous.
int64_t row_stride(const at::Tensor& x, std::string_view place, std::string_view name);

// ValueError unless x is contiguous.
void check_contiguous(const at::Tensor& x, std::string_view place, std::string_view name);

}  // namespace steppe::kernels
