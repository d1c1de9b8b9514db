#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "steppe/kernels/parallel_cpu.h"
#include "steppe/kernels/permute_backend.h"
#include "steppe/kernels/vector_math_cpu.h"

namespace steppe::kernels::cpu {
namespace {

template <class T>
void gather(const GatherValues& args) {
  T* out = static_cast<T*>(args.out);
  const T* values = static_cast<const T*>(args.values);
  parallel_ranges(args.n, grain_of(1), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      out[i * args.out_stride] = values[args.index[i] * args.values_stride];
  });
}

// Columns [c, c + 4·16) of a token: four sums at once keep the loads of a row in flight.
constexpr int kWide = 4;

template <class Y, class R>
void combine_token(Y* y, const R* rows, int64_t stride, const int32_t* slots, int64_t k, int64_t width,
                   bool add) {
  int64_t c = 0;
  for (; c + kWide * kLanes <= width; c += kWide * kLanes) {
    Lanes total[kWide] = {};
    for (int64_t j = 0; j < k; ++j) {
      const R* row = rows + slots[j] * stride + c;
      for (int w = 0; w < kWide; ++w) total[w] += load(row + w * kLanes);
    }
    for (int w = 0; w < kWide; ++w) {
      Y* out = y + c + w * kLanes;
      store(out, add ? load(out) + total[w] : total[w]);
    }
  }
  for (; c < width; c += kLanes) {
    const int64_t n = std::min<int64_t>(kLanes, width - c);
    Lanes total{};
    for (int64_t j = 0; j < k; ++j) total += load_first(rows + slots[j] * stride + c, n);
    store_first(y + c, add ? load_first(y + c, n) + total : total, n);
  }
}

template <class Y, class R>
void combine(const CombineRows& args) {
  parallel_ranges(args.tokens, grain_of(args.width * args.k), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t)
      combine_token(static_cast<Y*>(args.y) + t * args.y_stride, static_cast<const R*>(args.rows),
                    args.rows_stride, args.slot_of_route + t * args.k, args.k, args.width, args.add);
  });
}

}  // namespace

int64_t sort_routes(const SortRoutes& args) {
  const int64_t experts = static_cast<int64_t>(args.first_slot_of_expert.size());
  std::vector<int64_t> next(args.first_slot_of_expert.begin(), args.first_slot_of_expert.end());
  for (int64_t r = 0; r < args.routes; ++r) {
    const int32_t e = args.ids[r];
    if (e < 0 || e >= experts) return r;
    // An expert's slots end where the next one's begin: a wrong count shows before anything is overwritten.
    const int64_t end = e + 1 < experts ? args.first_slot_of_expert[e + 1] : args.routes;
    const int64_t slot = next[e]++;
    if (slot >= end) return r;
    args.slot_of_route[r] = static_cast<int32_t>(slot);
    args.route_of_slot[slot] = static_cast<int32_t>(r);
  }
  return -1;
}

void gather_rows(const ByteRows& rows, const int32_t* index, int64_t num_rows, int64_t divisor) {
  parallel_ranges(num_rows, grain_of(rows.row / 4), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      std::memcpy(rows.out + i * rows.out_stride, rows.in + index[i] / divisor * rows.in_stride, rows.row);
  });
}

void gather_values(const GatherValues& args) {
  if (args.element_bytes == 2)
    gather<uint16_t>(args);
  else if (args.element_bytes == 4)
    gather<uint32_t>(args);
  else
    gather<uint64_t>(args);
}

void combine_rows(const CombineRows& args) {
  if (args.rows_element == Element::kFloat32)
    combine<float, float>(args);
  else if (args.y_element == Element::kFloat32)
    combine<float, Bfloat16>(args);
  else
    combine<Bfloat16, Bfloat16>(args);
}

void copy_row_blocks(const ByteRows& rows, std::span<const RowBlock> blocks) {
  int64_t total = 0;
  for (const RowBlock& block : blocks) total += block.rows;
  const bool dense = rows.out_stride == rows.row && rows.in_stride == rows.row;
  // Threads share the rows of all blocks evenly: a block may be cut, or a thread may take many.
  parallel_ranges(total, grain_of(rows.row / 4), [&](int64_t begin, int64_t end) {
    int64_t first = 0;  // number of the block's first row among all
    for (const RowBlock& block : blocks) {
      const int64_t from = std::max(begin, first) - first, to = std::min(end, first + block.rows) - first;
      first += block.rows;
      if (from >= to) continue;
      char* out = rows.out + (block.to + from) * rows.out_stride;
      const char* in = rows.in + (block.from + from) * rows.in_stride;
      if (dense) {
        std::memcpy(out, in, (to - from) * rows.row);
        continue;
      }
      for (int64_t i = 0; i < to - from; ++i)
        std::memcpy(out + i * rows.out_stride, in + i * rows.in_stride, rows.row);
    }
  });
}

}  // namespace steppe::kernels::cpu
