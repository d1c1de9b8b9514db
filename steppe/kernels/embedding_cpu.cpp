#include <cstdint>
#include <cstring>

#include "steppe/kernels/embedding_backend.h"
#include "steppe/kernels/parallel_cpu.h"
#include "steppe/kernels/vector_math_cpu.h"

namespace steppe::kernels::cpu {
namespace {

// Each thread adds its own columns of every row, so that a table row's sum runs in the order of the tokens
// whatever the number of threads.
template <class T>
void add_rows(const EmbeddingBackward& args) {
  const int64_t grain = grain_of(args.rows);
  parallel_ranges(
      args.width, grain < kLanes ? kLanes : grain,
      [&](int64_t begin, int64_t end) {
        for (int64_t i = 0; i < args.rows; ++i) {
          float* grad = args.grad_table + (args.ids[i] - args.first_row) * args.width;
          const T* dy = static_cast<const T*>(args.dy) + i * args.dy_stride;
          int64_t c = begin;
          for (; c + kLanes <= end; c += kLanes) store(grad + c, load(grad + c) + load(dy + c));
          for (; c < end; ++c) grad[c] += to_float(dy[c]);
        }
      },
      kLanes);
}

}  // namespace

void embedding_forward(const EmbeddingForward& args) {
  parallel_ranges(args.rows, grain_of(args.row_bytes / 4), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      std::memcpy(args.out + i * args.out_stride_bytes,
                  args.table + (args.ids[i] - args.first_row) * args.row_bytes, args.row_bytes);
  });
}

void embedding_backward(const EmbeddingBackward& args) {
  args.element == Element::kFloat32 ? add_rows<float>(args) : add_rows<Bfloat16>(args);
}

}  // namespace steppe::kernels::cpu
