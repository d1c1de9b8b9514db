#include <algorithm>
#include <cmath>
#include <cstdint>

#include "steppe/kernels/parallel_cpu.h"
#include "steppe/kernels/rms_norm_backend.h"
#include "steppe/kernels/vector_math_cpu.h"

namespace steppe::kernels::cpu {
namespace {

template <class T>
float forward_row(T* y, const T* x, const T* weight, int64_t n, float eps) {
  Lanes squares{};
  over_lanes(n, [&](auto place) {
    const Lanes v = load(x, place);
    squares = mul_add(v, v, squares);
  });
  const float inv_rms = 1.f / std::sqrt(sum(squares) / static_cast<float>(n) + eps);
  over_lanes(n, [&](auto place) { store(y, place, load(x, place) * inv_rms * load(weight, place)); });
  return inv_rms;
}

// dx = inv·(g − x̂·mean(g·x̂)) with g = dy·weight and x̂ = x·inv.
template <class T>
void backward_row(T* dx, const T* dy, const T* x, const T* weight, float inv_rms, int64_t n, bool add) {
  Lanes products{};
  over_lanes(n, [&](auto place) {
    products = mul_add(load(dy, place) * load(weight, place), load(x, place), products);
  });
  const float along_x = sum(products) / static_cast<float>(n) * inv_rms * inv_rms * inv_rms;
  over_lanes(n, [&](auto place) {
    const Lanes g = load(dy, place) * load(weight, place) * inv_rms;
    const Lanes result = mul_add(load(x, place), broadcast(-along_x), g);
    store(dx, place, add ? load(dx, place) + result : result);
  });
}

template <class T>
void add_weight_gradient(float* sums, const T* dy, const T* x, float inv_rms, int64_t n) {
  over_lanes(n, [&](auto place) {
    store(sums, place, mul_add(load(dy, place), load(x, place) * inv_rms, load(sums, place)));
  });
}

void add_and_clear(float* to, float* from, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    to[i] += from[i];
    from[i] = 0;
  }
}

template <class T>
struct Rows {
  explicit Rows(const NormBackward& args) : args(args) {}
  T* dx(int64_t row) const { return static_cast<T*>(args.dx) + row * args.dx_stride; }
  const T* dy(int64_t row) const { return static_cast<const T*>(args.dy) + row * args.dy_stride; }
  const T* x(int64_t row) const { return static_cast<const T*>(args.x) + row * args.x_stride; }
  void differentiate(int64_t row) const {
    backward_row(dx(row), dy(row), x(row), static_cast<const T*>(args.weight), args.inv_rms[row],
                 args.columns, args.add_to_dx);
  }
  const NormBackward& args;
};

// Blocks of rows, whose size depends on the shape only, each sum their weight gradient on a stack; the sums
// are added in the order of the blocks. Within a block, groups of rows first: fewer additions to each sum,
// less rounding.
template <class T>
void backward_with_weight(const NormBackward& args) {
  constexpr int64_t kMostBlocks = 256, kGroup = 64;
  const int64_t n = args.columns;
  const int64_t wanted = std::max(grain_of(n), (args.rows + kMostBlocks - 1) / kMostBlocks);
  const int64_t block = (wanted + kGroup - 1) / kGroup * kGroup;
  const int64_t num_blocks = (args.rows + block - 1) / block;
  const auto num_threads = static_cast<int>(std::min<int64_t>(num_blocks, omp_get_max_threads()));
  const Rows<T> rows(args);
#pragma omp parallel for ordered schedule(static, 1) num_threads(num_threads)
  for (int64_t b = 0; b < num_blocks; ++b) {
    alignas(64) float group_sums[kMostNormColumns];
    alignas(64) float block_sums[kMostNormColumns];
    std::fill_n(group_sums, n, 0.f);
    std::fill_n(block_sums, n, 0.f);
    const int64_t end = std::min(args.rows, (b + 1) * block);
    for (int64_t begin = b * block; begin < end; begin += kGroup) {
      for (int64_t row = begin; row < std::min(end, begin + kGroup); ++row) {
        add_weight_gradient(group_sums, rows.dy(row), rows.x(row), args.inv_rms[row], n);
        rows.differentiate(row);  // afterwards: dx may be dy
      }
      add_and_clear(block_sums, group_sums, n);
    }
#pragma omp ordered
    add_and_clear(args.grad_weight, block_sums, n);
  }
}

}  // namespace

void rms_norm_forward(const NormForward& args) {
  with_element(args.element, [&](auto zero) {
    using T = decltype(zero);
    parallel_ranges(args.rows, grain_of(args.columns), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        args.inv_rms[row] = forward_row(static_cast<T*>(args.y) + row * args.y_stride,
                                        static_cast<const T*>(args.x) + row * args.x_stride,
                                        static_cast<const T*>(args.weight), args.columns, args.eps);
      }
    });
  });
}

void rms_norm_backward(const NormBackward& args) {
  with_element(args.element, [&](auto zero) {
    using T = decltype(zero);
    if (args.grad_weight != nullptr) return backward_with_weight<T>(args);
    const Rows<T> rows(args);
    parallel_ranges(args.rows, grain_of(args.columns), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) rows.differentiate(row);
    });
  });
}

}  // namespace steppe::kernels::cpu
