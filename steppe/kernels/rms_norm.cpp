#include "steppe/kernels/rms_norm.h"

#include <string_view>

#include "steppe/base/error.h"
#include "steppe/kernels/backend.h"
#include "steppe/kernels/rms_norm_backend.h"

namespace steppe::kernels {
namespace {

// Another [R, H] operand beside x; returns its row stride.
int64_t check_rows(const at::Tensor& rows, const at::Tensor& x, std::string_view place,
                   std::string_view name) {
  check_device(rows, x, place, name);
  check_dtype(rows, x.scalar_type(), place, name);
  const int64_t stride = row_stride(rows, place, name);
  STEPPE_CHECK_VALUE(rows.sizes() == x.sizes(), "[{}] {} must be [{}, {}] as x, got [{}, {}]", place, name,
                     x.size(0), x.size(1), rows.size(0), rows.size(1));
  return stride;
}

void check_vector(const at::Tensor& v, int64_t size, at::ScalarType dtype, const at::Tensor& x,
                  std::string_view place, std::string_view name) {
  check_device(v, x, place, name);
  check_dtype(v, dtype, place, name);
  check_contiguous(v, place, name);
  STEPPE_CHECK_VALUE(v.dim() == 1 && v.size(0) == size,
                     "[{}] {} must have 1 dimension of {}, got {} elements", place, name, size, v.numel());
}

int64_t check_x(const at::Tensor& x, std::string_view place) {
  STEPPE_CHECK_VALUE(x.defined(), "[{}] x must be a tensor, but is undefined", place);
  const int64_t stride = row_stride(x, place, "x");
  STEPPE_CHECK_VALUE(x.size(1) <= kMostNormColumns, "[{}] rows must have at most {} columns, got {}", place,
                     kMostNormColumns, x.size(1));
  return stride;
}

}  // namespace

void rms_norm_forward(const at::Tensor& y, const at::Tensor& inv_rms, const at::Tensor& x,
                      const at::Tensor& weight, double eps) {
  constexpr std::string_view kPlace = "rms_norm_forward";
  NormForward raw;
  raw.x_stride = check_x(x, kPlace);
  raw.element = element_of(x, kPlace, "x");
  raw.y_stride = check_rows(y, x, kPlace, "y");
  raw.rows = x.size(0);
  raw.columns = x.size(1);
  check_vector(inv_rms, raw.rows, at::kFloat, x, kPlace, "inv_rms");
  check_vector(weight, raw.columns, x.scalar_type(), x, kPlace, "weight");
  STEPPE_CHECK_VALUE(eps >= 0, "[{}] eps must not be negative, got {}", kPlace, eps);
  if (x.is_meta() || x.numel() == 0) return;
  raw.y = y.data_ptr();
  raw.inv_rms = inv_rms.data_ptr<float>();
  raw.x = x.const_data_ptr();
  raw.weight = weight.const_data_ptr();
  raw.eps = static_cast<float>(eps);
  if (x.is_cuda()) return cuda::rms_norm_forward(raw, current_cuda_stream(x));
  cpu::rms_norm_forward(raw);
}

void rms_norm_backward(const RmsNormBackward& args) {
  constexpr std::string_view kPlace = "rms_norm_backward";
  const at::Tensor& x = args.x;
  NormBackward raw;
  raw.x_stride = check_x(x, kPlace);
  raw.element = element_of(x, kPlace, "x");
  raw.dy_stride = check_rows(args.dy, x, kPlace, "dy");
  raw.dx_stride = check_rows(args.dx, x, kPlace, "dx");
  raw.rows = x.size(0);
  raw.columns = x.size(1);
  check_vector(args.inv_rms, raw.rows, at::kFloat, x, kPlace, "inv_rms");
  check_vector(args.weight, raw.columns, x.scalar_type(), x, kPlace, "weight");
  if (args.grad_weight.defined())
    check_vector(args.grad_weight, raw.columns, at::kFloat, x, kPlace, "grad_weight");
  if (x.is_meta() || x.numel() == 0) return;
  raw.dx = args.dx.data_ptr();
  raw.dy = args.dy.const_data_ptr();
  STEPPE_CHECK_VALUE(!args.add_to_dx || raw.dx != raw.dy, "[{}] dx must not be dy when it is added to",
                     kPlace);
  raw.grad_weight = args.grad_weight.defined() ? args.grad_weight.data_ptr<float>() : nullptr;
  raw.x = x.const_data_ptr();
  raw.weight = args.weight.const_data_ptr();
  raw.inv_rms = args.inv_rms.const_data_ptr<float>();
  raw.add_to_dx = args.add_to_dx;
  if (x.is_cuda()) return cuda::rms_norm_backward(raw, current_cuda_stream(x));
  cpu::rms_norm_backward(raw);
}

}  // namespace steppe::kernels
