#include "steppe/kernels/clamp.h"

#include <c10/util/BFloat16.h>
#include <fmt/ranges.h>

#include <cmath>
#include <string_view>

#include "steppe/base/error.h"
#include "steppe/kernels/backend.h"
#include "steppe/kernels/clamp_backend.h"

namespace steppe::kernels {
namespace {

// As a tensor of the dtype would hold it.
float rounded(double limit, Element element) {
  const auto value = static_cast<float>(limit);
  return element == Element::kBfloat16 ? static_cast<float>(c10::BFloat16(value)) : value;
}

ClampArgs checked(const at::Tensor& out, const at::Tensor& x, double limit, std::string_view place,
                  std::string_view name) {
  STEPPE_CHECK_VALUE(x.defined(), "[{}] x must be a tensor, but is undefined", place);
  STEPPE_CHECK_VALUE(std::isfinite(limit) && limit > 0, "[{}] limit must be a number above 0, got {}", place,
                     limit);
  ClampArgs args;
  args.element = element_of(x, place, "x");
  check_contiguous(x, place, "x");
  check_device(out, x, place, name);
  check_dtype(out, x.scalar_type(), place, name);
  check_contiguous(out, place, name);
  STEPPE_CHECK_VALUE(out.sizes() == x.sizes(), "[{}] {} must have shape {}, got {}", place, name,
                     fmt::join(x.sizes(), "×"), fmt::join(out.sizes(), "×"));
  args.size = x.numel();
  args.limit = rounded(limit, args.element);
  if (x.is_meta() || args.size == 0) return args;
  args.out = out.data_ptr();
  args.x = x.const_data_ptr();
  return args;
}

}  // namespace

void clamp_forward(const at::Tensor& out, const at::Tensor& x, double limit) {
  const auto args = checked(out, x, limit, "clamp_forward", "out");
  if (args.out == nullptr) return;
  if (x.is_cuda()) return cuda::clamp_forward(args, current_cuda_stream(x));
  cpu::clamp_forward(args);
}

void clamp_backward(const at::Tensor& dx, const at::Tensor& x, double limit) {
  const auto args = checked(dx, x, limit, "clamp_backward", "dx");
  if (args.out == nullptr) return;
  if (x.is_cuda()) return cuda::clamp_backward(args, current_cuda_stream(x));
  cpu::clamp_backward(args);
}

}  // namespace steppe::kernels
