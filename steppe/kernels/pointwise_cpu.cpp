#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>

#include "steppe/kernels/parallel_cpu.h"
#include "steppe/kernels/pointwise_backend.h"
#include "steppe/kernels/vector_math_cpu.h"

namespace steppe::kernels::cpu {
namespace {

constexpr int64_t kGrain = 32768;

template <class To, class From>
void add_row(To* __restrict to, const From* __restrict from, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) to[i] = from_float<To>(to_float(to[i]) + to_float(from[i]));
}

template <class To, class From>
void add_rows(const AddTo& args) {
  const RowPairs& r = args.rows;
  const auto to = [&](int64_t row) {
    return static_cast<To*>(args.to) + row / r.inner * r.to_outer + row % r.inner * r.to_inner;
  };
  const auto from = [&](int64_t row) {
    return static_cast<const From*>(args.from) + row / r.inner * r.from_outer + row % r.inner * r.from_inner;
  };
  const int64_t rows = r.outer * r.inner;
  if (r.columns < 4 * kGrain && rows > 1) {
    parallel_ranges(rows, grain_of(r.columns), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) add_row(to(row), from(row), r.columns);
    });
    return;
  }
  for (int64_t row = 0; row < rows; ++row) {
    parallel_ranges(r.columns, kGrain, [&](int64_t begin, int64_t end) {
      add_row(to(row) + begin, from(row) + begin, end - begin);
    });
  }
}

constexpr int kHalf = kLanes / 2;
using HalfLanes = float __attribute__((vector_size(kHalf * sizeof(float))));
using DoubleLanes = double __attribute__((vector_size(kHalf * sizeof(double))));

STEPPE_INLINE DoubleLanes squares(HalfLanes x) {
  const DoubleLanes wide = __builtin_convertvector(x, DoubleLanes);
  return wide * wide;
}

template <class T>
double sum_of_squares(const T* x, int64_t n) {
  DoubleLanes even{}, odd{};
  over_lanes(n, [&](auto place) {
    const Lanes v = load(x, place);
    even += squares(__builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7));
    odd += squares(__builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15));
  });
  even += odd;
  std::array<double, kHalf> lanes;
  std::memcpy(lanes.data(), &even, sizeof even);
  for (int half = kHalf / 2; half > 0; half /= 2) {
    for (int l = 0; l < half; ++l) lanes[l] += lanes[l + half];
  }
  return lanes[0];
}

// Exponent all ones: infinite or NaN.
template <class T>
int64_t count_nonfinite(const T* x, int64_t n) {
  uint32_t count = 0;
#pragma omp simd reduction(+ : count)
  for (int64_t i = 0; i < n; ++i) {
    count += (std::bit_cast<uint32_t>(to_float(x[i])) & 0x7f800000u) == 0x7f800000u ? 1u : 0u;
  }
  return count;
}

}  // namespace

void add(void* out, const void* b, const ConstArray& a) {
  with_element(a.element, [&](auto zero) {
    using T = decltype(zero);
    // No __restrict: out may be a or b, element by element.
    T* to = static_cast<T*>(out);
    const T* left = static_cast<const T*>(a.x);
    const T* right = static_cast<const T*>(b);
    parallel_ranges(a.size, kGrain, [=](int64_t begin, int64_t end) {
#pragma omp simd
      for (int64_t i = begin; i < end; ++i) to[i] = from_float<T>(to_float(left[i]) + to_float(right[i]));
    });
  });
}

void scale(void* x, Element element, int64_t size, float factor) {
  with_element(element, [&](auto zero) {
    using T = decltype(zero);
    T* values = static_cast<T*>(x);
    parallel_ranges(size, kGrain, [=](int64_t begin, int64_t end) {
#pragma omp simd
      for (int64_t i = begin; i < end; ++i) values[i] = from_float<T>(to_float(values[i]) * factor);
    });
  });
}

void add_to(const AddTo& args) {
  if (args.to_element == Element::kBfloat16) return add_rows<Bfloat16, Bfloat16>(args);
  if (args.from_element == Element::kBfloat16) return add_rows<float, Bfloat16>(args);
  add_rows<float, float>(args);
}

void add_parts_in_order(const AddParts& args) {
  // A piece of the accumulator stays in the first-level cache while every part adds to it.
  constexpr int64_t kPiece = 4096;
  with_element(args.part_element, [&](auto zero) {
    using T = decltype(zero);
    parallel_ranges(args.size, kGrain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; i += kPiece) {
        const int64_t n = std::min(kPiece, end - i);
        for (const void* part : args.parts) add_row(args.accumulator + i, static_cast<const T*>(part) + i, n);
      }
    });
  });
}

void add_sum_of_squares(double* out, const ConstArray& x) {
  constexpr int64_t kMostBlocks = 1024, kLeastBlock = 8192;
  const int64_t wanted = std::min(kMostBlocks, (x.size + kLeastBlock - 1) / kLeastBlock);
  const int64_t block = ((x.size + wanted - 1) / wanted + kLanes - 1) / kLanes * kLanes;
  const int64_t num_blocks = (x.size + block - 1) / block;
  std::array<double, kMostBlocks> sums;
  with_element(x.element, [&](auto zero) {
    using T = decltype(zero);
    parallel_ranges(num_blocks, kGrain / kLeastBlock, [&](int64_t begin, int64_t end) {
      for (int64_t b = begin; b < end; ++b) {
        sums[b] = sum_of_squares(static_cast<const T*>(x.x) + b * block, std::min(block, x.size - b * block));
      }
    });
  });
  for (int64_t width = 1; width < num_blocks; width *= 2) {
    for (int64_t b = 0; b + width < num_blocks; b += 2 * width) sums[b] += sums[b + width];
  }
  *out += sums[0];
}

void add_nonfinite_count(int64_t* out, const ConstArray& x) {
  with_element(x.element, [&](auto zero) {
    using T = decltype(zero);
    parallel_ranges(x.size, kGrain, [&](int64_t begin, int64_t end) {
      int64_t count = 0;
      constexpr int64_t kPiece = int64_t{1} << 30;  // the inner count has 32 bits
      for (int64_t i = begin; i < end; i += kPiece) {
        count += count_nonfinite(static_cast<const T*>(x.x) + i, std::min(kPiece, end - i));
      }
#pragma omp atomic
      *out += count;
    });
  });
}

}  // namespace steppe::kernels::cpu
