#include <algorithm>

#include "steppe/kernels/parallel_cpu.h"
#include "steppe/kernels/row_bias_backend.h"
#include "steppe/kernels/vector_math_cpu.h"

namespace steppe::kernels::cpu {
namespace {

float weight_of(const RowBias& args, int64_t row) {
  return args.row_weight ? args.row_weight[row] : 1.f;
}

// Sums over the rows of columns [begin, end), as many at a time as the first-level cache holds beside a row.
template <class T>
void sum_columns(const RowBias& args, int64_t begin, int64_t end) {
  constexpr int64_t kColumns = 1024;
  for (; begin < end; begin += kColumns) {
    float* sums = static_cast<float*>(args.bias) + begin;
    const T* rows = static_cast<const T*>(args.rows) + begin;
    for (int64_t r = 0; r < args.num_rows; ++r) {
      const Lanes weight = broadcast(weight_of(args, r));
      over_lanes(std::min(kColumns, end - begin), [&](auto place) {
        store(sums, place, mul_add(load(rows + r * args.stride, place), weight, load(sums, place)));
      });
    }
  }
}

}  // namespace

void add_row_bias(const RowBias& args) {
  with_element(args.element, [&](auto zero) {
    using T = decltype(zero);
    const T* bias = static_cast<const T*>(args.bias);
    parallel_ranges(args.num_rows, grain_of(args.columns), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        T* row = static_cast<T*>(args.rows) + r * args.stride;
        const Lanes weight = broadcast(weight_of(args, r));
        over_lanes(args.columns, [&](auto place) {
          store(row, place, mul_add(load(bias, place), weight, load(row, place)));
        });
      }
    });
  });
}

void add_column_sums(const RowBias& args) {
  with_element(args.element, [&](auto zero) {
    using T = decltype(zero);
    parallel_ranges(
        args.columns, grain_of(args.num_rows),
        [&](int64_t begin, int64_t end) { sum_columns<T>(args, begin, end); }, kLanes);
  });
}

void add_row_dots(const RowBias& args) {
  with_element(args.element, [&](auto zero) {
    using T = decltype(zero);
    const T* bias = static_cast<const T*>(args.bias);
    parallel_ranges(args.num_rows, grain_of(args.columns), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const T* row = static_cast<const T*>(args.rows) + r * args.stride;
        Lanes total{};
        over_lanes(args.columns,
                   [&](auto place) { total = mul_add(load(row, place), load(bias, place), total); });
        args.out[r] += sum(total);
      }
    });
  });
}

}  // namespace steppe::kernels::cpu
