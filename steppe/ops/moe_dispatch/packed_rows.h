// A row on its way to an expert carries its routing weight, and the row that returns the weight's gradient:
// H values, rounded up to 16 bytes, then 16 bytes that begin with one fp32. So every row stays aligned, and
// neither travels in an exchange of its own.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <cstdint>

namespace steppe::ops {

struct PackedRow {
  PackedRow(int64_t hidden_values, at::ScalarType dtype)
      : hidden(hidden_values), itemsize(static_cast<int64_t>(c10::elementSize(dtype))) {}

  int64_t width() const { return weight_column() + 16 / itemsize; }  // in values

  at::Tensor values(const at::Tensor& packed_RP) const { return packed_RP.narrow(1, 0, hidden); }
  // [R], strided.
  at::Tensor weights(const at::Tensor& packed_RP) const {
    return packed_RP.narrow(1, weight_column(), 4 / itemsize).view(at::kFloat).select(1, 0);
  }

  int64_t hidden, itemsize;

 private:
  int64_t weight_column() const { return (hidden * itemsize + 15) / 16 * 16 / itemsize; }
};

}  // namespace steppe::ops
