// How the tests of CUDA kernels reach a device: a GPU (device_tensors_test.cpp) or, in tests/cuda_on_cpu, its
// emulation.
#pragma once

#include <ATen/core/Tensor.h>

namespace steppe::kernels {

bool has_device();
// With the same strides, and the same gaps between rows.
at::Tensor to_device(const at::Tensor& x);
at::Tensor to_host(const at::Tensor& x);

}  // namespace steppe::kernels
