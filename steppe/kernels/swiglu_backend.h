// Raw row passes behind swiglu.h. No Torch header. Strides are between rows, in elements.
#pragma once

#include <cstdint>

#include "steppe/kernels/element.h"
#include "steppe/kernels/swiglu_form.h"

namespace steppe::kernels {

// The form, and the bias [2·columns] that is added first.
struct SwigluShape {
  SwigluForm form{};
  const void* bias = nullptr;  // null: 0
  bool plain() const { return bias == nullptr && form == SwigluForm{}; }
};

struct SwigluForward {
  void* a = nullptr;
  const void* gate_up = nullptr;
  const float* row_weight = nullptr;  // null: 1
  Element element = Element::kFloat32;
  int64_t rows = 0, columns = 0, a_stride = 0, gate_up_stride = 0;
  SwigluShape shape{};
};

struct SwigluBackward {
  void *gate_up = nullptr, *da = nullptr;
  const float* row_weight = nullptr;  // null: 1
  float* grad_row_weight = nullptr;   // null: not wanted
  Element element = Element::kFloat32;
  int64_t rows = 0, columns = 0, gate_up_stride = 0, da_stride = 0;
  SwigluShape shape{};
};

namespace cpu {
void swiglu_forward(const SwigluForward& args);
void swiglu_backward(const SwigluBackward& args);
}  // namespace cpu

namespace cuda {
void swiglu_forward(const SwigluForward& args, void* stream);
void swiglu_backward(const SwigluBackward& args, void* stream);
}  // namespace cuda

}  // namespace steppe::kernels
