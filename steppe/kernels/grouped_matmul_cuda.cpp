#include <ATen/core/Tensor.h>
#include <ATen/cuda/CUDAContextLight.h>
#include <ATen/native/cuda/GroupMM.h>

#include <optional>

#include "steppe/kernels/grouped_matmul_backend.h"

namespace steppe::kernels::cuda {

// ATen's _grouped_mm asks the same; elsewhere it would loop, after a sync to learn the sizes.
bool has_grouped_kernel(const at::Tensor& x) {
  const int major = at::cuda::getDeviceProperties(x.device().index())->major;
  return major == 9 || major == 10;
}

// What at::_grouped_mm calls, which would allocate the result.
void grouped_matmul(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, const at::Tensor& ends) {
  at::Tensor result = out;
  at::cuda::detail::bf16bf16_grouped_mm(a, b, ends, std::nullopt, result);
}

}  // namespace steppe::kernels::cuda
