// Raw passes behind rotary.h. No Torch header. Strides are in elements.
#pragma once

#include <cstdint>
#include <span>

#include "steppe/kernels/element.h"

namespace steppe::kernels {

// The most frequencies (half a head) that a launch carries.
inline constexpr int64_t kMostFrequencies = 512;

struct Rotary {
  void* x = nullptr;
  const float *cos = nullptr, *sin = nullptr;  // [tokens, half], contiguous
  Element element = Element::kFloat32;
  int64_t tokens = 0, heads = 0, half = 0, token_stride = 0, head_stride = 0;
  bool inverse = false;
};

struct RotaryTables {
  float *cos = nullptr, *sin = nullptr;  // [tokens, frequencies], contiguous
  const int32_t* positions = nullptr;
  std::span<const float> inverse_frequencies;  // on the host
  int64_t tokens = 0;
  float attention_factor = 1;
};

namespace cpu {
void rotary(const Rotary& args);
void rotary_tables(const RotaryTables& args);
}  // namespace cpu

namespace cuda {
void rotary(const Rotary& args, void* stream);
void rotary_tables(const RotaryTables& args, void* stream);
}  // namespace cuda

}  // namespace steppe::kernels
