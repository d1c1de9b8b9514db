// Sixteen floats at a time. Reductions that must not depend on the compiler's choice of vector width keep
// their partial sums in the lanes of a Lanes, and fold them by a fixed tree. Written with GCC's vector type
// and loops over lanes, which compile to one instruction each with AVX-512 and to several without.
#pragma once

#ifdef __AVX512F__
#include <immintrin.h>
#endif

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "steppe/kernels/bfloat16_cpu.h"

namespace steppe::kernels::cpu {

inline constexpr int kLanes = 16;
using Lanes = float __attribute__((vector_size(kLanes * sizeof(float))));
using Words = uint32_t __attribute__((vector_size(kLanes * sizeof(uint32_t))));
using HalfWords = uint16_t __attribute__((vector_size(kLanes * sizeof(uint16_t))));

#define STEPPE_INLINE inline __attribute__((always_inline))

STEPPE_INLINE Lanes broadcast(float x) {
  return x - Lanes{};
}

STEPPE_INLINE Lanes load(const float* p) {
  Lanes v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
STEPPE_INLINE Lanes load(const Bfloat16* p) {
  HalfWords halves;
  std::memcpy(&halves, p, sizeof halves);
  return std::bit_cast<Lanes>(__builtin_convertvector(halves, Words) << 16);
}
STEPPE_INLINE void store(float* p, Lanes v) {
  std::memcpy(p, &v, sizeof v);
}
STEPPE_INLINE void store(Bfloat16* p, Lanes v) {
  const Words bits = std::bit_cast<Words>(v);
  const Words rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const HalfWords halves = __builtin_convertvector(v != v ? Words{} + 0x7fc0u : rounded, HalfWords);
  std::memcpy(p, &halves, sizeof halves);
}

// The first n < 16 values; the other lanes are `fill`.
template <class T>
STEPPE_INLINE Lanes load_first(const T* p, int64_t n, float fill = 0) {
  float lanes[kLanes];
  for (int l = 0; l < kLanes; ++l) lanes[l] = l < n ? to_float(p[l]) : fill;
  return load(lanes);
}
template <class T>
STEPPE_INLINE void store_first(T* p, Lanes v, int64_t n) {
  float lanes[kLanes];
  store(lanes, v);
  for (int l = 0; l < n; ++l) p[l] = from_float<T>(lanes[l]);
}

// A place in a row: sixteen elements from `at`, or the last `size` of them. over_lanes calls body with each
// place of a row of n elements, in order.
struct Whole {
  int64_t at;
};
struct Part {
  int64_t at, size;
};
template <class T>
STEPPE_INLINE Lanes load(const T* row, Whole place) {
  return load(row + place.at);
}
template <class T>
STEPPE_INLINE Lanes load(const T* row, Part place) {
  return load_first(row + place.at, place.size);
}
template <class T>
STEPPE_INLINE void store(T* row, Whole place, Lanes v) {
  store(row + place.at, v);
}
template <class T>
STEPPE_INLINE void store(T* row, Part place, Lanes v) {
  store_first(row + place.at, v, place.size);
}
template <class Body>
STEPPE_INLINE void over_lanes(int64_t n, const Body& body) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) body(Whole{i});
  if (i < n) body(Part{i, n - i});
}

// The lanes folded by halves.
STEPPE_INLINE float sum(Lanes v) {
  float lanes[kLanes];
  store(lanes, v);
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int l = 0; l < half; ++l) lanes[l] += lanes[l + half];
  }
  return lanes[0];
}
STEPPE_INLINE float maximum(Lanes v) {
  float lanes[kLanes];
  store(lanes, v);
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int l = 0; l < half; ++l) lanes[l] = lanes[l] < lanes[l + half] ? lanes[l + half] : lanes[l];
  }
  return lanes[0];
}

// a·b + c, rounded once.
STEPPE_INLINE float mul_add(float a, float b, float c) {
  return std::fma(a, b, c);
}
STEPPE_INLINE Lanes mul_add(Lanes a, Lanes b, Lanes c) {
  Lanes r;
  for (int l = 0; l < kLanes; ++l) r[l] = std::fma(a[l], b[l], c[l]);
  return r;
}

// b where a < b, else a: where either is NaN, a.
STEPPE_INLINE float larger(float a, float b) {
  return a < b ? b : a;
}
STEPPE_INLINE float smaller(float a, float b) {
  return a > b ? b : a;
}

// x·2ⁿ, rounded once, in two steps so that neither overflows before the result does; shifted = n + kShift.
inline constexpr float kShift = 0x1.8p23f;  // adding it rounds to an integer, left in the low bits
STEPPE_INLINE float scale_by_power(float x, float shifted) {
  // Unsigned: a NaN's bits may overflow, and the product is NaN whatever the scale.
  const uint32_t exponent = std::bit_cast<uint32_t>(shifted) - std::bit_cast<uint32_t>(kShift);
  const uint32_t half = static_cast<uint32_t>(static_cast<int32_t>(exponent) >> 1);
  const float scale_half = std::bit_cast<float>((half + 127u) << 23);
  const float scale_rest = std::bit_cast<float>((exponent - half + 127u) << 23);
  return x * scale_half * scale_rest;
}

#ifdef __AVX512F__
// One instruction each, which the compiler does not find; the same bits. (Masked: the plain forms make g++ 12
// warn.)
inline constexpr __mmask16 kEvery = 0xffff;
STEPPE_INLINE Lanes larger(Lanes a, Lanes b) {
  return static_cast<Lanes>(_mm512_maskz_max_ps(kEvery, static_cast<__m512>(b), static_cast<__m512>(a)));
}
STEPPE_INLINE Lanes smaller(Lanes a, Lanes b) {
  return static_cast<Lanes>(_mm512_maskz_min_ps(kEvery, static_cast<__m512>(b), static_cast<__m512>(a)));
}
STEPPE_INLINE Lanes scale_by_power(Lanes x, Lanes shifted) {
  return static_cast<Lanes>(
      _mm512_maskz_scalef_ps(kEvery, static_cast<__m512>(x), static_cast<__m512>(shifted - kShift)));
}
#else
STEPPE_INLINE Lanes larger(Lanes a, Lanes b) {
  return a < b ? b : a;
}
STEPPE_INLINE Lanes smaller(Lanes a, Lanes b) {
  return a > b ? b : a;
}
STEPPE_INLINE Lanes scale_by_power(Lanes x, Lanes shifted) {
  Lanes r;
  for (int l = 0; l < kLanes; ++l) r[l] = scale_by_power(x[l], shifted[l]);
  return r;
}
#endif

// e^x within 1 ulp of the exact value, denormal results within one unit of the last place; e^−∞ = 0, overflow
// is ∞, NaN stays NaN. x = n·ln 2 + r with |r| ≤ ln 2/2; e^r = 1 + r + r²·q(r), where q minimizes the
// relative error (3e-9). One value or lanes of them, the same bits.
template <class T>
STEPPE_INLINE T exp(T x) {
  const auto constant = [](float c) { return c - T{}; };
  x = smaller(larger(x, constant(-104.f)), constant(89.f));
  const T shifted = mul_add(x, constant(0x1.715476p0f), constant(kShift));
  const T n = shifted - kShift;
  T r = mul_add(n, constant(-0x1.62e430p-1f), x);
  r = mul_add(n, constant(0x1.05c610p-29f), r);
  T q = constant(0x1.6a23cep-10f);
  q = mul_add(q, r, constant(0x1.123a20p-7f));
  q = mul_add(q, r, constant(0x1.5558f2p-5f));
  q = mul_add(q, r, constant(0x1.555492p-3f));
  q = mul_add(q, r, constant(0x1.fffffcp-2f));
  return scale_by_power(mul_add(q, r * r, r) + 1.f, shifted);
}

// 1 / (1 + e^−x)
STEPPE_INLINE float sigmoid(float x) {
  return 1.f / (1.f + exp(-x));
}
STEPPE_INLINE Lanes sigmoid(Lanes x) {
  return 1.f / (1.f + exp(-x));
}

}  // namespace steppe::kernels::cpu
