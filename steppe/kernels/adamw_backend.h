// The raw update behind adamw.h. No Torch header.
#pragma once

#include <cstdint>

#include "steppe/kernels/element.h"

namespace steppe::kernels {

// Every coefficient of a step, computed in fp64 and rounded to fp32 once: both backends get the same bits.
struct AdamWCoefficients {
  float grad_scale = 1;
  float beta1 = 0, one_minus_beta1 = 0;
  float beta2 = 0, one_minus_beta2 = 0;
  float rsqrt_bias2 = 1;  // 1/√(1 − β2ᵗ)
  float eps = 0;
  float minus_decay = 0;      // −lr·wd
  float minus_step_size = 0;  // −lr/(1 − β1ᵗ)
};

struct AdamWUpdate {
  float* master = nullptr;
  void *m = nullptr, *v = nullptr;
  const void* grad = nullptr;
  void* working = nullptr;  // null: not written
  Element moments_element = Element::kFloat32, grad_element = Element::kFloat32,
          working_element = Element::kFloat32;
  int64_t size = 0;
  AdamWCoefficients coefficients;
};

namespace cpu {
void adamw(const AdamWUpdate& args);
}
namespace cuda {
void adamw(const AdamWUpdate& args, void* stream);
}

}  // namespace steppe::kernels
