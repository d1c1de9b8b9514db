#include "steppe/kernels/backend.h"

#include <c10/core/ScalarType.h>
#include <fmt/format.h>

#include "steppe/base/error.h"

namespace steppe::kernels {

Element element_of(const at::Tensor& x, std::string_view place, std::string_view name) {
  STEPPE_CHECK_VALUE(x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16,
                     "[{}] {} must be float32 or bfloat16, got {}", place, name,
                     c10::toString(x.scalar_type()));
  return x.scalar_type() == at::kFloat ? Element::kFloat32 : Element::kBfloat16;
}

void check_dtype(const at::Tensor& x, at::ScalarType dtype, std::string_view place, std::string_view name) {
  STEPPE_CHECK_VALUE(x.scalar_type() == dtype, "[{}] {} must be {}, got {}", place, name,
                     c10::toString(dtype), c10::toString(x.scalar_type()));
}

void check_device(const at::Tensor& x, const at::Tensor& other, std::string_view place,
                  std::string_view name) {
  STEPPE_CHECK_VALUE(x.defined(), "[{}] {} must be a tensor, but is undefined", place, name);
  STEPPE_CHECK_VALUE(x.device() == other.device(), "[{}] {} must be on {}, got {}", place, name,
                     other.device().str(), x.device().str());
}

int64_t row_stride(const at::Tensor& x, std::string_view place, std::string_view name) {
  STEPPE_CHECK_VALUE(x.dim() == 2, "[{}] {} must have 2 dimensions, got {}", place, name, x.dim());
  STEPPE_CHECK_VALUE(x.size(1) <= 1 || x.stride(1) == 1,
                     "[{}] {}'s last dimension must be contiguous, got stride {}", place, name, x.stride(1));
  return x.stride(0);
}

void check_contiguous(const at::Tensor& x, std::string_view place, std::string_view name) {
  STEPPE_CHECK_VALUE(x.is_contiguous(), "[{}] {} must be contiguous", place, name);
}

}  // namespace steppe::kernels
