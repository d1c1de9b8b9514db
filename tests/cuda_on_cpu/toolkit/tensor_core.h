// What steppe/kernels/tensor_core_cuda.cuh has of PTX, for a CPU.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>
#include <source_location>

#include "tests/cuda_on_cpu/emulation.h"

namespace steppe::kernels::cuda {

// The element of a lane's pair, as a number.
inline float element_of(uint32_t pair, int which) {
  return __bfloat162float({static_cast<uint16_t>(pair >> 16 * which)});
}

// Every lane takes what it needs of the others' operands, which lie in their frames until all have done so.
inline void multiply_add(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                         std::source_location where = std::source_location::current()) {
  const uint32_t operands[6] = {a[0], a[1], a[2], a[3], b0, b1};
  const auto& of_lanes = cuda_on_cpu::exchange_in_warp(reinterpret_cast<uintptr_t>(operands), where.line());
  const auto operand = [&](int lane, int i) { return reinterpret_cast<const uint32_t*>(of_lanes[lane])[i]; };
  const int g = cuda_on_cpu::lane / 4, t = cuda_on_cpu::lane % 4;
  for (int i = 0; i < 4; ++i) {
    const int column = 2 * t + i % 2, low_or_high_row = i / 2;
    for (int k = 0; k < 16; ++k) {
      const uint32_t x = operand(g * 4 + k % 8 / 2, low_or_high_row + 2 * (k / 8));
      const uint32_t y = operand(column * 4 + k % 8 / 2, 4 + k / 8);
      c[i] += element_of(x, k % 2) * element_of(y, k % 2);
    }
  }
  cuda_on_cpu::exchange_in_warp(0, where.line());
}

template <bool kTransposed>
void load_matrices_of_lanes(uint32_t (&m)[4], const void* row, unsigned line) {
  const auto address = reinterpret_cast<uintptr_t>(row);
  cuda_on_cpu::expect(address % 16 == 0, "a matrix row that is not aligned to 16 bytes");
  const auto& rows = cuda_on_cpu::exchange_in_warp(address, line);
  const auto at = [&](int matrix, int r, int c) {
    return uint32_t{reinterpret_cast<const uint16_t*>(rows[8 * matrix + r])[c]};
  };
  const int g = cuda_on_cpu::lane / 4, t = cuda_on_cpu::lane % 4;
  for (int i = 0; i < 4; ++i) {
    const uint32_t first = kTransposed ? at(i, 2 * t, g) : at(i, g, 2 * t);
    const uint32_t second = kTransposed ? at(i, 2 * t + 1, g) : at(i, g, 2 * t + 1);
    m[i] = first | second << 16;
  }
}

inline void load_matrices(uint32_t (&m)[4], const void* row,
                          std::source_location where = std::source_location::current()) {
  load_matrices_of_lanes<false>(m, row, where.line());
}
inline void load_transposed(uint32_t (&m)[4], const void* row,
                            std::source_location where = std::source_location::current()) {
  load_matrices_of_lanes<true>(m, row, where.line());
}

}  // namespace steppe::kernels::cuda
