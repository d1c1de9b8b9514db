// What the tests of this folder measure: errors against an fp64 oracle, allocations, and sameness over
// threads.
#pragma once

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>

#include "steppe/memory/scope.h"

namespace steppe::kernels {

// The largest relative error of rounding to nearest.
inline double unit_roundoff(at::ScalarType dtype) {
  return dtype == at::kBFloat16 ? 0x1p-8 : 0x1p-24;
}

// max |got − want| over the largest |want| (or over `size`, where cancellation makes want small); want is
// fp64.
inline double relative_error(const at::Tensor& got, const at::Tensor& want, double size = 0) {
  if (want.numel() == 0) return 0;
  EXPECT_EQ(want.scalar_type(), at::kDouble);
  EXPECT_EQ(got.sizes(), want.sizes());
  const double scale = std::max({want.abs().max().item<double>(), size, 1e-300});
  return (got.to(at::kDouble) - want).abs().max().item<double>() / scale;
}

// How many blocks `run` takes from the tensor allocators.
inline int64_t num_allocations_in(const std::function<void()>& run) {
  const int64_t before = memory::process_ledger().num_allocations();
  run();
  return memory::process_ledger().num_allocations() - before;
}

// Calls check(number of threads) with one, two and three threads.
inline void for_numbers_of_threads(const std::function<void(int)>& check) {
  const int before = at::get_num_threads();
  for (const int threads : {1, 2, 3}) {
    at::set_num_threads(threads);
    check(threads);
  }
  at::set_num_threads(before);
}

}  // namespace steppe::kernels
