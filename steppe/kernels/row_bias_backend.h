// Raw row passes behind row_bias.h. No Torch header.
#pragma once

#include <cstdint>

#include "steppe/kernels/element.h"

namespace steppe::kernels {

struct RowBias {
  void* rows = nullptr;               // written by add_row_bias only
  void* bias = nullptr;               // of the rows' element type; add_column_sums: fp32, accumulated
  const float* row_weight = nullptr;  // null: 1
  float* out = nullptr;               // add_row_dots, accumulated
  Element element = Element::kFloat32;
  int64_t num_rows = 0, columns = 0, stride = 0;  // between rows, in elements
};

namespace cpu {
void add_row_bias(const RowBias& args);
void add_column_sums(const RowBias& args);
void add_row_dots(const RowBias& args);
}  // namespace cpu

namespace cuda {
void add_row_bias(const RowBias& args, void* stream);
void add_column_sums(const RowBias& args, void* stream);
void add_row_dots(const RowBias& args, void* stream);
}  // namespace cuda

}  // namespace steppe::kernels
