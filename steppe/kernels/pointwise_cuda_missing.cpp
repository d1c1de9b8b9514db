#include "steppe/kernels/cuda_failure.h"
#include "steppe/kernels/pointwise_backend.h"

namespace steppe::kernels::cuda {

void add(void*, const void*, const ConstArray&, void*) {
  throw_missing("add");
}
void scale(void*, Element, int64_t, float, void*) {
  throw_missing("scale");
}
void add_to(const AddTo&, void*) {
  throw_missing("add_to");
}
void add_parts_in_order(const AddParts&, void*) {
  throw_missing("add_parts_in_order");
}
void add_sum_of_squares(double*, const ConstArray&, void*) {
  throw_missing("add_sum_of_squares");
}
void add_nonfinite_count(int64_t*, const ConstArray&, void*) {
  throw_missing("add_nonfinite_count");
}

}  // namespace steppe::kernels::cuda
