// Raw element-wise passes behind pointwise.h. No Torch header. Sizes and strides are in elements.
#pragma once

#include <cstdint>
#include <span>

#include "steppe/kernels/element.h"

namespace steppe::kernels {

// Two tensors of one shape as outer × inner rows of `columns` contiguous elements.
struct RowPairs {
  int64_t outer = 1, inner = 1, columns = 1;
  int64_t to_outer = 0, to_inner = 0;      // strides of the written tensor
  int64_t from_outer = 0, from_inner = 0;  // strides of the read one
};

struct AddTo {
  void* to = nullptr;
  const void* from = nullptr;
  Element to_element = Element::kFloat32, from_element = Element::kFloat32;
  RowPairs rows;
};

struct AddParts {
  float* accumulator = nullptr;
  std::span<const void* const> parts;
  Element part_element = Element::kFloat32;
  int64_t size = 0;
};

// x [size] of `element`.
struct ConstArray {
  const void* x = nullptr;
  Element element = Element::kFloat32;
  int64_t size = 0;
};

namespace cpu {
void add(void* out, const void* b, const ConstArray& a);
void scale(void* x, Element element, int64_t size, float factor);
void add_to(const AddTo& args);
void add_parts_in_order(const AddParts& args);
void add_sum_of_squares(double* out, const ConstArray& x);
void add_nonfinite_count(int64_t* out, const ConstArray& x);
}  // namespace cpu

namespace cuda {
void add(void* out, const void* b, const ConstArray& a, void* stream);
void scale(void* x, Element element, int64_t size, float factor, void* stream);
void add_to(const AddTo& args, void* stream);
void add_parts_in_order(const AddParts& args, void* stream);
void add_sum_of_squares(double* out, const ConstArray& x, void* stream);
void add_nonfinite_count(int64_t* out, const ConstArray& x, void* stream);
}  // namespace cuda

}  // namespace steppe::kernels
