// Raw row passes behind rms_norm.h. No Torch header. Strides are between rows, in elements.
#pragma once

#include <cstdint>

#include "steppe/kernels/element.h"

namespace steppe::kernels {

// The widest row whose weight gradient is summed on a thread's stack.
inline constexpr int64_t kMostNormColumns = 16384;

struct NormForward {
  void* y = nullptr;
  float* inv_rms = nullptr;
  const void *x = nullptr, *weight = nullptr;
  Element element = Element::kFloat32;
  int64_t rows = 0, columns = 0, y_stride = 0, x_stride = 0;
  float eps = 0;
};

struct NormBackward {
  void* dx = nullptr;
  float* grad_weight = nullptr;  // null: not wanted
  const void *dy = nullptr, *x = nullptr, *weight = nullptr;
  const float* inv_rms = nullptr;
  Element element = Element::kFloat32;
  int64_t rows = 0, columns = 0, dx_stride = 0, dy_stride = 0, x_stride = 0;
  bool add_to_dx = false;
};

namespace cpu {
void rms_norm_forward(const NormForward& args);
void rms_norm_backward(const NormBackward& args);
}  // namespace cpu

namespace cuda {
void rms_norm_forward(const NormForward& args, void* stream);
void rms_norm_backward(const NormBackward& args, void* stream);
}  // namespace cuda

}  // namespace steppe::kernels
