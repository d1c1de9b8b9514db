// Raw-pointer backends of permute.h. No Torch header.
#pragma once

#include <cstdint>
#include <span>

#include "steppe/kernels/element.h"
#include "steppe/kernels/row_block.h"

namespace steppe::kernels {

struct SortRoutes {
  int32_t *slot_of_route = nullptr, *route_of_slot = nullptr;
  const int32_t* ids = nullptr;
  int64_t routes = 0;
  std::span<const int64_t> first_slot_of_expert;
};

// Rows as bytes: `row` bytes each, strides in bytes.
struct ByteRows {
  char* out = nullptr;
  const char* in = nullptr;
  int64_t row = 0, out_stride = 0, in_stride = 0;
};

// Strides in elements.
struct GatherValues {
  void* out = nullptr;
  const void* values = nullptr;
  const int32_t* index = nullptr;
  int64_t n = 0, element_bytes = 4, out_stride = 1, values_stride = 1;
};

struct CombineRows {
  void* y = nullptr;
  const void* rows = nullptr;
  Element y_element = Element::kFloat32, rows_element = Element::kFloat32;
  int64_t y_stride = 0, rows_stride = 0;  // in elements
  const int32_t* slot_of_route = nullptr;
  int64_t tokens = 0, width = 0, k = 0;
  bool add = false;
};

namespace cpu {
// The first route that could not be placed, or -1.
int64_t sort_routes(const SortRoutes& args);
// out row i = in row index[i] / divisor
void gather_rows(const ByteRows& rows, const int32_t* index, int64_t num_rows, int64_t divisor);
void gather_values(const GatherValues& args);
void combine_rows(const CombineRows& args);
void copy_row_blocks(const ByteRows& rows, std::span<const RowBlock> blocks);
}  // namespace cpu

namespace cuda {
void sort_routes(const SortRoutes& args, void* stream);
void gather_rows(const ByteRows& rows, const int32_t* index, int64_t num_rows, int64_t divisor, void* stream);
void gather_values(const GatherValues& args, void* stream);
void combine_rows(const CombineRows& args, void* stream);
void copy_row_blocks(const ByteRows& rows, std::span<const RowBlock> blocks, void* stream);
}  // namespace cuda

}  // namespace steppe::kernels
