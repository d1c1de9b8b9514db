// Raw loops behind clamp.h. No Torch header.
#pragma once

#include <cstdint>

#include "steppe/kernels/element.h"

namespace steppe::kernels {

struct ClampArgs {
  void* out = nullptr;  // dx of the backward
  const void* x = nullptr;
  Element element = Element::kFloat32;
  int64_t size = 0;
  float limit = 0;
};

namespace cpu {
void clamp_forward(const ClampArgs& args);
void clamp_backward(const ClampArgs& args);
}  // namespace cpu

namespace cuda {
void clamp_forward(const ClampArgs& args, void* stream);
void clamp_backward(const ClampArgs& args, void* stream);
}  // namespace cuda

}  // namespace steppe::kernels
