#include <cstdint>

#include "steppe/kernels/parallel_cpu.h"
#include "steppe/kernels/swiglu_backend.h"
#include "steppe/kernels/vector_math_cpu.h"

namespace steppe::kernels::cpu {
namespace {

template <class T>
void forward_row(T* a, const T* gate, const T* up, float weight, int64_t n) {
  over_lanes(n, [&](auto place) {
    const Lanes g = load(gate, place);
    store(a, place, g * sigmoid(g) * load(up, place) * weight);
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

}  // namespace

void swiglu_forward(const SwigluForward& args) {
  with_element(args.element, [&](auto zero) {
    using T = decltype(zero);
    parallel_ranges(args.rows, grain_of(2 * args.columns), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const T* gate = static_cast<const T*>(args.gate_up) + row * args.gate_up_stride;
        forward_row(static_cast<T*>(args.a) + row * args.a_stride, gate, gate + args.columns,
                    args.row_weight ? args.row_weight[row] : 1.f, args.columns);
      }
    });
  });
}

void swiglu_backward(const SwigluBackward& args) {
  with_element(args.element, [&](auto zero) {
    using T = decltype(zero);
    parallel_ranges(args.rows, grain_of(4 * args.columns), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        T* gate = static_cast<T*>(args.gate_up) + row * args.gate_up_stride;
        const float along_weight =
            backward_row(gate, gate + args.columns, static_cast<T*>(args.da) + row * args.da_stride,
                         args.row_weight ? args.row_weight[row] : 1.f, args.columns);
        if (args.grad_row_weight) args.grad_row_weight[row] = along_weight;
      }
    });
  });
}

}  // namespace steppe::kernels::cpu
