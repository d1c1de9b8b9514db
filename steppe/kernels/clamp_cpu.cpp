#include <cstdint>

#include "steppe/kernels/clamp_backend.h"
#include "steppe/kernels/parallel_cpu.h"
#include "steppe/kernels/vector_math_cpu.h"

namespace steppe::kernels::cpu {
namespace {

constexpr int64_t kGrain = 32768;

}  // namespace

void clamp_forward(const ClampArgs& args) {
  with_element(args.element, [&](auto zero) {
    using T = decltype(zero);
    // No __restrict: out may be x, element by element.
    T* out = static_cast<T*>(args.out);
    const T* x = static_cast<const T*>(args.x);
    parallel_ranges(args.size, kGrain, [=, limit = args.limit](int64_t begin, int64_t end) {
#pragma omp simd
      for (int64_t i = begin; i < end; ++i) {
        const float value = to_float(x[i]);
        const float low = value < -limit ? -limit : value;
        out[i] = from_float<T>(low > limit ? limit : low);
      }
    });
  });
}

void clamp_backward(const ClampArgs& args) {
  with_element(args.element, [&](auto zero) {
    using T = decltype(zero);
    T* dx = static_cast<T*>(args.out);
    const T* x = static_cast<const T*>(args.x);
    parallel_ranges(args.size, kGrain, [=, limit = args.limit](int64_t begin, int64_t end) {
#pragma omp simd
      for (int64_t i = begin; i < end; ++i) {
        const float value = to_float(x[i]);
        const bool clamped = value > limit || value < -limit;
        dx[i] = from_float<T>(clamped ? 0.0F : to_float(dx[i]));
      }
    });
  });
}

}  // namespace steppe::kernels::cpu
