#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "steppe/kernels/parallel_cpu.h"
#include "steppe/kernels/softmax_rows_backend.h"
#include "steppe/kernels/vector_math_cpu.h"

namespace steppe::kernels::cpu {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
// A block is read twice, for its maximum and for its sum; the second time it comes from the first-level
// cache.
constexpr int64_t kBlock = 2048;

// What exponents are taken relative to: in a row of −∞ so far, −∞ − (−∞) must not arise.
float finite_base(float maximum) {
  return maximum == kMinusInfinity ? 0.f : maximum;
}

template <class T>
float block_maximum(const T* y, int64_t n) {
  Lanes m0 = broadcast(kMinusInfinity), m1 = m0;
  int64_t i = 0;
  for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
    m0 = larger(m0, load(y + i));
    m1 = larger(m1, load(y + i + kLanes));
  }
  for (; i + kLanes <= n; i += kLanes) m0 = larger(m0, load(y + i));
  if (i < n) m1 = larger(m1, load_first(y + i, n - i, kMinusInfinity));
  return maximum(larger(m0, m1));
}

struct MaximumAndSum {
  float maximum, sum;
};

template <class T>
MaximumAndSum row_statistics(const T* y, int64_t columns) {
  float m = kMinusInfinity;
  Lanes z0{}, z1{};
  for (int64_t begin = 0; begin < columns; begin += kBlock) {
    const T* block = y + begin;
    const int64_t n = std::min(kBlock, columns - begin);
    const float block_m = block_maximum(block, n);
    if (block_m > m) {
      const float shrink = exp(m - block_m);
      z0 *= shrink;
      z1 *= shrink;
      m = block_m;
    }
    const float base = finite_base(m);
    int64_t i = 0;
    for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
      // The next block arrives while this one is computed on: its maximum is found at memory's pace
      // otherwise.
      __builtin_prefetch(block + kBlock + i);
      __builtin_prefetch(block + kBlock + i + kLanes);
      z0 += exp(load(block + i) - base);
      z1 += exp(load(block + i + kLanes) - base);
    }
    for (; i + kLanes <= n; i += kLanes) z0 += exp(load(block + i) - base);
    if (i < n) z1 += exp(load_first(block + i, n - i, kMinusInfinity) - base);
  }
  return {m, sum(z0 + z1)};
}

// stats [3], of row r.
template <class T>
void statistics(float* stats, const LogitStrip& strip, int64_t r) {
  const T* y = static_cast<const T*>(strip.logits) + r * strip.row_stride;
  const MaximumAndSum s = row_statistics(y, strip.columns);
  const int64_t column = strip.targets[r] - strip.first_column;
  const bool here = strip.targets[r] >= 0 && column >= 0 && column < strip.columns;
  stats[0] = s.maximum;
  stats[1] = s.sum;
  stats[2] = here ? to_float(y[column]) : kMinusInfinity;
}

// y = factor · e^{y − base}
template <class T>
void scaled_exp(T* y, int64_t columns, float base, float factor) {
  int64_t i = 0;
  for (; i + kLanes <= columns; i += kLanes) store(y + i, exp(load(y + i) - base) * factor);
  if (i < columns) store_first(y + i, exp(load_first(y + i, columns - i) - base) * factor, columns - i);
}

// The same times 1 − (y/cap)².
template <class T>
void scaled_exp_of_capped(T* y, int64_t columns, float base, float factor, float inverse_cap) {
  over_lanes(columns, [&](auto place) {
    const Lanes capped = load(y, place), t = capped * inverse_cap;
    store(y, place, exp(capped - base) * factor * (1.f - t * t));
  });
}

template <class T>
void cap(const LogitStrip& strip) {
  const float cap = strip.softcap, twice_inverse = 2 / cap;
  parallel_ranges(strip.rows, grain_of(strip.columns), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      T* y = static_cast<T*>(strip.logits) + r * strip.row_stride;
      // tanh(x) = 1 − 2/(e^{2x} + 1)
      over_lanes(strip.columns, [&](auto place) {
        store(y, place, cap - 2.f * cap / (exp(load(y, place) * twice_inverse) + 1.f));
      });
    }
  });
}

// Of row r, with its stats [3].
template <class T>
void gradient(const LogitStrip& strip, int64_t r, const float* stats, float weight) {
  T* y = static_cast<T*>(strip.logits) + r * strip.row_stride;
  if (strip.targets[r] < 0 || weight == 0) {
    std::fill_n(y, strip.columns, T{});
    return;
  }
  const float base = finite_base(stats[0]), z = stats[1];
  const int64_t column = strip.targets[r] - strip.first_column;
  const bool here = column >= 0 && column < strip.columns;
  const float target_logit = here ? to_float(y[column]) : 0;
  const float c = strip.z_loss_coeff;
  const float share = c == 0 ? 1.f : 1.f + 2.f * c * (base + std::log(z));
  float slope = 1;
  if (strip.softcap > 0) {
    const float t = target_logit / strip.softcap;
    slope = 1.f - t * t;
    scaled_exp_of_capped(y, strip.columns, base, weight * share / z, 1.f / strip.softcap);
  } else {
    scaled_exp(y, strip.columns, base, weight * share / z);
  }
  if (here) y[column] = from_float<T>(weight * (share * exp(target_logit - base) / z - 1.f) * slope);
}

// body(T{}, r) for every row of the strip, T the C++ type of its elements.
template <class Body>
void for_rows(const LogitStrip& strip, const Body& body) {
  with_element(strip.element, [&](auto element) {
    parallel_ranges(strip.rows, grain_of(strip.columns), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) body(element, r);
    });
  });
}

}  // namespace

void soft_cap(const LogitStrip& strip) {
  strip.element == Element::kFloat32 ? cap<float>(strip) : cap<Bfloat16>(strip);
}

void logit_statistics(float* stats, const LogitStrip& strip) {
  for_rows(strip, [&](auto element, int64_t r) { statistics<decltype(element)>(stats + 3 * r, strip, r); });
}

void merge_statistics(float* merged, const float* parts, int64_t num_parts, int64_t rows) {
  parallel_ranges(rows, grain_of(8 * num_parts), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      float m = kMinusInfinity, z = 0, y = kMinusInfinity;
      for (int64_t p = 0; p < num_parts; ++p) m = std::max(m, parts[(p * rows + r) * 3]);
      const float base = finite_base(m);
      for (int64_t p = 0; p < num_parts; ++p) {
        const float* part = parts + (p * rows + r) * 3;
        z += part[1] * exp(part[0] - base);
        y = std::max(y, part[2]);
      }
      merged[3 * r] = m;
      merged[3 * r + 1] = z;
      merged[3 * r + 2] = y;
    }
  });
}

void add_loss(const LossRows& args) {
  // Sums of blocks of rows, then of blocks, in order: no matter which thread took which block.
  constexpr int64_t kRows = 1024, kBlocks = 64;
  for (int64_t first = 0; first < args.rows; first += kRows * kBlocks) {
    const int64_t blocks = std::min(kBlocks, (args.rows - first + kRows - 1) / kRows);
    double partial[kBlocks];
    parallel_ranges(blocks, 2, [&](int64_t begin, int64_t end) {
      for (int64_t b = begin; b < end; ++b) {
        const int64_t last = std::min(args.rows, first + (b + 1) * kRows);
        double total = 0;
        for (int64_t r = first + b * kRows; r < last; ++r) {
          const float* s = args.stats + 3 * r;
          const bool counts = args.targets[r] >= 0;
          const double log_sum = double{s[0]} + std::log(double{s[1]});
          const double z_loss = args.z_loss_coeff == 0 ? 0.0 : args.z_loss_coeff * log_sum * log_sum;
          const double loss = counts ? log_sum - double{s[2]} + z_loss : 0.0;
          if (args.row_loss) args.row_loss[r] = static_cast<float>(loss);
          const double weight = args.row_weight ? double{args.row_weight[r]} : 1.0;
          if (counts && weight != 0) total += weight * loss;
        }
        partial[b] = total;
      }
    });
    for (int64_t b = 0; b < blocks; ++b) *args.loss += partial[b];
  }
}

void logits_to_gradient(const LogitStrip& strip, const float* stats, const float* row_weight) {
  for_rows(strip, [&](auto element, int64_t r) {
    gradient<decltype(element)>(strip, r, stats + 3 * r, row_weight[r]);
  });
}

void statistics_and_gradient(float* stats, const LogitStrip& strip, const float* row_weight) {
  for_rows(strip, [&](auto element, int64_t r) {
    statistics<decltype(element)>(stats + 3 * r, strip, r);
    gradient<decltype(element)>(strip, r, stats + 3 * r, row_weight[r]);
  });
}

}  // namespace steppe::kernels::cpu
