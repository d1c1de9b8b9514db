#include <cmath>
#include <cstdint>

#include "steppe/kernels/parallel_cpu.h"
#include "steppe/kernels/rotary_backend.h"
#include "steppe/kernels/vector_math_cpu.h"

namespace steppe::kernels::cpu {
namespace {

template <class T>
void rotate_head(T* head, const float* cos, const float* sin, float direction, int64_t half) {
  over_lanes(half, [&](auto place) {
    const Lanes a = load(head, place), b = load(head + half, place);
    const Lanes c = load(cos, place), s = load(sin, place) * direction;
    store(head, place, a * c - b * s);
    store(head + half, place, b * c + a * s);
  });
}

}  // namespace

void rotary(const Rotary& args) {
  with_element(args.element, [&](auto zero) {
    using T = decltype(zero);
    parallel_ranges(args.tokens, grain_of(2 * args.heads * args.half), [&](int64_t begin, int64_t end) {
      for (int64_t token = begin; token < end; ++token) {
        for (int64_t h = 0; h < args.heads; ++h) {
          rotate_head(static_cast<T*>(args.x) + token * args.token_stride + h * args.head_stride,
                      args.cos + token * args.half, args.sin + token * args.half, args.inverse ? -1.f : 1.f,
                      args.half);
        }
      }
    });
  });
}

void rotary_tables(const RotaryTables& args) {
  const auto half = static_cast<int64_t>(args.inverse_frequencies.size());
  constexpr int64_t kPassesOfOneAngle = 16;  // an angle costs as much as this many plain elements
  parallel_ranges(args.tokens, grain_of(kPassesOfOneAngle * half), [&](int64_t begin, int64_t end) {
    for (int64_t token = begin; token < end; ++token) {
      const auto position = static_cast<float>(args.positions[token]);
      for (int64_t i = 0; i < half; ++i) {
        const float angle = position * args.inverse_frequencies[i];
        args.cos[token * half + i] = std::cos(angle) * args.attention_factor;
        args.sin[token * half + i] = std::sin(angle) * args.attention_factor;
      }
    }
  });
}

}  // namespace steppe::kernels::cpu
