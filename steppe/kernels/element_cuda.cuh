// Element types on the device, and the choice between them at launch.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "steppe/kernels/element.h"

namespace steppe::kernels::cuda {

__device__ inline float to_float(float x) {
  return x;
}
__device__ inline float to_float(__nv_bfloat16 x) {
  return __bfloat162float(x);
}

template <class T>
__device__ T from_float(float x);
template <>
__device__ inline float from_float<float>(float x) {
  return x;
}
template <>
__device__ inline __nv_bfloat16 from_float<__nv_bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}

// body(T{}) with the C++ type of `element`.
template <class Body>
void with_element(Element element, const Body& body) {
  if (element == Element::kFloat32)
    body(float{});
  else
    body(__nv_bfloat16{});
}

inline constexpr int kWarp = 32;
inline constexpr unsigned kAllLanes = 0xffffffffu;

}  // namespace steppe::kernels::cuda
