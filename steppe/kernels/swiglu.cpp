#include "steppe/kernels/swiglu.h"

#include <string_view>

#include "steppe/base/error.h"
#include "steppe/kernels/backend.h"
#include "steppe/kernels/swiglu_backend.h"

namespace steppe::kernels {
namespace {

struct Strides {
  int64_t gate_up = 0, narrow = 0;
};

// gate_up [R, 2I] beside `narrow` [R, I].
Strides check_rows(const at::Tensor& gate_up, const at::Tensor& narrow, std::string_view place,
                   std::string_view name) {
  STEPPE_CHECK_VALUE(gate_up.defined(), "[{}] gate_up must be a tensor, but is undefined", place);
  check_device(narrow, gate_up, place, name);
  check_dtype(narrow, gate_up.scalar_type(), place, name);
  const Strides strides{row_stride(gate_up, place, "gate_up"), row_stride(narrow, place, name)};
  STEPPE_CHECK_VALUE(gate_up.size(1) % 2 == 0, "[{}] gate_up.size(1) must be even, got {}", place,
                     gate_up.size(1));
  STEPPE_CHECK_VALUE(narrow.size(0) == gate_up.size(0) && narrow.size(1) == gate_up.size(1) / 2,
                     "[{}] {} must be [{}, {}], got [{}, {}]", place, name, gate_up.size(0),
                     gate_up.size(1) / 2, narrow.size(0), narrow.size(1));
  return strides;
}

void check_row_values(const at::Tensor& v, const at::Tensor& gate_up, std::string_view place,
                      std::string_view name) {
  if (!v.defined()) return;
  check_device(v, gate_up, place, name);
  check_dtype(v, at::kFloat, place, name);
  check_contiguous(v, place, name);
  STEPPE_CHECK_VALUE(v.numel() == gate_up.size(0), "[{}] {} must have {} elements, got {}", place, name,
                     gate_up.size(0), v.numel());
}

SwigluShape check_shape(const SwigluOptions& options, const at::Tensor& gate_up, std::string_view place) {
  const auto& bias = options.bias_2I;
  SwigluShape shape{options.form};
  if (!bias.defined()) return shape;
  check_device(bias, gate_up, place, "bias");
  check_dtype(bias, gate_up.scalar_type(), place, "bias");
  check_contiguous(bias, place, "bias");
  STEPPE_CHECK_VALUE(bias.numel() == gate_up.size(1), "[{}] bias must have {} elements, got {}", place,
                     gate_up.size(1), bias.numel());
  if (!bias.is_meta()) shape.bias = bias.const_data_ptr();
  return shape;
}

}  // namespace

void swiglu_forward(const at::Tensor& a_RI, const at::Tensor& gate_up_R2I, const at::Tensor& row_weight_R,
                    const SwigluOptions& options) {
  constexpr std::string_view kPlace = "swiglu_forward";
  const Strides strides = check_rows(gate_up_R2I, a_RI, kPlace, "a");
  check_row_values(row_weight_R, gate_up_R2I, kPlace, "row_weight");
  const Element element = element_of(gate_up_R2I, kPlace, "gate_up");
  const SwigluShape shape = check_shape(options, gate_up_R2I, kPlace);
  if (a_RI.is_meta() || a_RI.numel() == 0) return;
  const SwigluForward raw{
      .a = a_RI.data_ptr(),
      .gate_up = gate_up_R2I.const_data_ptr(),
      .row_weight = row_weight_R.defined() ? row_weight_R.const_data_ptr<float>() : nullptr,
      .element = element,
      .rows = a_RI.size(0),
      .columns = a_RI.size(1),
      .a_stride = strides.narrow,
      .gate_up_stride = strides.gate_up,
      .shape = shape,
  };
  if (a_RI.is_cuda()) return cuda::swiglu_forward(raw, current_cuda_stream(a_RI));
  cpu::swiglu_forward(raw);
}

void swiglu_backward_inplace(const at::Tensor& gate_up_R2I, const at::Tensor& da_RI,
                             const at::Tensor& row_weight_R, const at::Tensor& grad_row_weight_R,
                             const SwigluOptions& options) {
  constexpr std::string_view kPlace = "swiglu_backward_inplace";
  const Strides strides = check_rows(gate_up_R2I, da_RI, kPlace, "da");
  check_row_values(row_weight_R, gate_up_R2I, kPlace, "row_weight");
  check_row_values(grad_row_weight_R, gate_up_R2I, kPlace, "grad_row_weight");
  const Element element = element_of(gate_up_R2I, kPlace, "gate_up");
  const SwigluShape shape = check_shape(options, gate_up_R2I, kPlace);
  if (da_RI.is_meta() || da_RI.size(0) == 0) return;
  const SwigluBackward raw{
      .gate_up = gate_up_R2I.data_ptr(),
      .da = da_RI.data_ptr(),
      .row_weight = row_weight_R.defined() ? row_weight_R.const_data_ptr<float>() : nullptr,
      .grad_row_weight = grad_row_weight_R.defined() ? grad_row_weight_R.data_ptr<float>() : nullptr,
      .element = element,
      .rows = da_RI.size(0),
      .columns = da_RI.size(1),
      .gate_up_stride = strides.gate_up,
      .da_stride = strides.narrow,
      .shape = shape,
  };
  if (da_RI.is_cuda()) return cuda::swiglu_backward(raw, current_cuda_stream(da_RI));
  cpu::swiglu_backward(raw);
}

}  // namespace steppe::kernels
