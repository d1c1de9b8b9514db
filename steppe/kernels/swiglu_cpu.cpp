#include <bit>
#include <cstdint>

#include "steppe/kernels/parallel_cpu.h"
#include "steppe/kernels/swiglu_backend.h"
#include "steppe/kernels/vector_math_cpu.h"

namespace steppe::kernels::cpu {
namespace {

// Gate and up as the activation sees them, and where each still depends on its input.
struct Gated {
  Lanes gate, up;
  Words gate_moves, up_moves;  // all ones, or zero beyond the limit
};

template <class T, class Place>
STEPPE_INLINE Gated gated(const T* gate, const T* up, const SwigluShape& shape, int64_t n, Place place) {
  Lanes g = load(gate, place), u = load(up, place);
  if (shape.bias) {
    const T* bias = static_cast<const T*>(shape.bias);
    g += load(bias, place), u += load(bias + n, place);
  }
  const Lanes limit = broadcast(shape.form.limit);
  const Lanes low_u = u < -limit ? -limit : u;
  return {g > limit ? limit : g, (low_u > limit ? limit : low_u) + shape.form.up_offset,
          std::bit_cast<Words>(g <= limit), std::bit_cast<Words>((u >= -limit) & (u <= limit))};
}

STEPPE_INLINE Lanes where(Words mask, Lanes v) {
  return std::bit_cast<Lanes>(std::bit_cast<Words>(v) & mask);
}

template <class T>
void forward_row(T* a, const T* gate, const T* up, float weight, int64_t n) {
  over_lanes(n, [&](auto place) {
    const Lanes g = load(gate, place);
    store(a, place, g * sigmoid(g) * load(up, place) * weight);
  });
}

template <class T>
void forward_row(T* a, const T* gate, const T* up, float weight, int64_t n, const SwigluShape& shape) {
  over_lanes(n, [&](auto place) {
    const auto [g, u, g_moves, u_moves] = gated(gate, up, shape, n, place);
    store(a, place, g * sigmoid(g * shape.form.gate_scale) * u * weight);
  });
}

// Returns Σ da · silu(gate) · up.
template <class T>
float backward_row(T* gate, T* up, T* da, float weight, int64_t n) {
  Lanes along_weight{};
  over_lanes(n, [&](auto place) {
    const Lanes g = load(gate, place), u = load(up, place), d = load(da, place);
    const Lanes s = sigmoid(g);
    const Lanes silu = g * s, activation = silu * u;
    along_weight = mul_add(d, activation, along_weight);
    const Lanes weighted = d * weight;
    store(up, place, weighted * silu);
    store(gate, place, weighted * u * (s + silu * (1.f - s)));
    store(da, place, activation * weight);
  });
  return sum(along_weight);
}

template <class T>
float backward_row(T* gate, T* up, T* da, float weight, int64_t n, const SwigluShape& shape) {
  const float scale = shape.form.gate_scale;
  Lanes along_weight{};
  over_lanes(n, [&](auto place) {
    const auto [g, u, g_moves, u_moves] = gated(gate, up, shape, n, place);
    const Lanes d = load(da, place), s = sigmoid(g * scale);
    const Lanes glu = g * s, activation = glu * u;
    along_weight = mul_add(d, activation, along_weight);
    const Lanes weighted = d * weight;
    store(up, place, where(u_moves, weighted * glu));
    store(gate, place, where(g_moves, weighted * u * (s + glu * scale * (1.f - s))));
    store(da, place, activation * weight);
  });
  return sum(along_weight);
}

}  // namespace

void swiglu_forward(const SwigluForward& args) {
  const bool plain = args.shape.plain();
  with_element(args.element, [&](auto zero) {
    using T = decltype(zero);
    parallel_ranges(args.rows, grain_of(2 * args.columns), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const T* gate = static_cast<const T*>(args.gate_up) + row * args.gate_up_stride;
        T* a = static_cast<T*>(args.a) + row * args.a_stride;
        const float weight = args.row_weight ? args.row_weight[row] : 1.f;
        if (plain)
          forward_row(a, gate, gate + args.columns, weight, args.columns);
        else
          forward_row(a, gate, gate + args.columns, weight, args.columns, args.shape);
      }
    });
  });
}

void swiglu_backward(const SwigluBackward& args) {
  const bool plain = args.shape.plain();
  with_element(args.element, [&](auto zero) {
    using T = decltype(zero);
    parallel_ranges(args.rows, grain_of(4 * args.columns), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        T* gate = static_cast<T*>(args.gate_up) + row * args.gate_up_stride;
        T *up = gate + args.columns, *da = static_cast<T*>(args.da) + row * args.da_stride;
        const float weight = args.row_weight ? args.row_weight[row] : 1.f;
        const float along_weight = plain ? backward_row(gate, up, da, weight, args.columns)
                                         : backward_row(gate, up, da, weight, args.columns, args.shape);
        if (args.grad_row_weight) args.grad_row_weight[row] = along_weight;
      }
    });
  });
}

}  // namespace steppe::kernels::cpu
