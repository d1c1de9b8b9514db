// Element types on the CPU, and the choice between them. bfloat16 is the upper half of a float32; conversions
// are straight-line, so that loops over them vectorize.
#pragma once

#include <bit>
#include <cstdint>

#include "steppe/kernels/element.h"

namespace steppe::kernels::cpu {

struct Bfloat16 {
  uint16_t bits;
};

inline float to_float(float x) {
  return x;
}
inline float to_float(Bfloat16 x) {
  return std::bit_cast<float>(uint32_t{x.bits} << 16);
}

// Round to nearest, ties to even; every NaN becomes the quiet NaN 0x7fc0.
inline uint16_t bfloat16_bits(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  return static_cast<uint16_t>(x != x ? 0x7fc0u : rounded);
}

template <class T>
T from_float(float x);
template <>
inline float from_float<float>(float x) {
  return x;
}
template <>
inline Bfloat16 from_float<Bfloat16>(float x) {
  return Bfloat16{bfloat16_bits(x)};
}

// body(T{}) with the C++ type of `element`.
template <class Body>
void with_element(Element element, const Body& body) {
  if (element == Element::kFloat32) {
    body(float{});
  } else {
    body(Bfloat16{});
  }
}

}  // namespace steppe::kernels::cpu
