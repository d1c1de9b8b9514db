// The grouped kernel of the CUDA library; called by grouped_matmul.cpp.
#pragma once

namespace at {
class Tensor;
}

namespace steppe::kernels {

// Whether the kernel takes a view as it is: one unit stride, the others and the address of 16 bytes.
bool fits_grouped_kernel(const at::Tensor& x);

namespace cuda {

// Of the device that x is on.
bool has_grouped_kernel(const at::Tensor& x);
// All operands bf16, and fit.
void grouped_matmul(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, const at::Tensor& ends);

}  // namespace cuda
}  // namespace steppe::kernels
