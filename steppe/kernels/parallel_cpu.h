// Threading of CPU kernels: OpenMP directly, on the runtime that LibTorch uses, so that at::set_num_threads
// of the calling thread holds here too. Small work stays on the calling thread.
#pragma once

#include <omp.h>

#include <algorithm>
#include <cstdint>

namespace steppe::kernels::cpu {

// body(begin, end) over disjoint ranges that cover [0, n), at most one per thread, each of at least `grain`
// items (the last may be shorter), with boundaries at multiples of `align`. What body computes for an item
// must not depend on its range.
template <class Body>
void parallel_ranges(int64_t n, int64_t grain, const Body& body, int64_t align = 1) {
  if (n <= 0) return;
  const int64_t most = (n + grain - 1) / std::max<int64_t>(grain, 1);
  const int64_t num_threads = std::clamp<int64_t>(most, 1, omp_get_max_threads());
  if (num_threads == 1 || omp_in_parallel()) {
    body(int64_t{0}, n);
    return;
  }
#pragma omp parallel num_threads(static_cast <int>(num_threads))
  {
    // The runtime may grant fewer threads than asked.
    const int64_t granted = omp_get_num_threads();
    int64_t length = (n + granted - 1) / granted;
    length = (length + align - 1) / align * align;
    const int64_t begin = std::min(n, omp_get_thread_num() * length);
    const int64_t end = std::min(n, begin + length);
    if (begin < end) body(begin, end);
  }
}

// Items of a range so small that a second thread would cost more than it saves, for items of `elements` each.
inline int64_t grain_of(int64_t elements) {
  return std::max<int64_t>(1, 32768 / std::max<int64_t>(elements, 1));
}

}  // namespace steppe::kernels::cpu
