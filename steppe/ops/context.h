// What every operator is handed: where tensors live, the working precision, and the counters it feeds.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <cstdint>

#include "steppe/base/counters.h"

namespace steppe::ops {

struct OpContext {
  at::Device device{at::kCPU};
  at::ScalarType dtype = at::kFloat;  // of activations and working weights
  Counters* counters = nullptr;       // never null in a step

  at::Tensor empty(at::IntArrayRef sizes) const { return empty(sizes, dtype); }
  at::Tensor empty(at::IntArrayRef sizes, at::ScalarType type) const {
    return at::empty(sizes, at::TensorOptions().device(device).dtype(type));
  }
  int64_t itemsize() const { return static_cast<int64_t>(c10::elementSize(dtype)); }
};

}  // namespace steppe::ops
