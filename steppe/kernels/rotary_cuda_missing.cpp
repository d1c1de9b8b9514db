#include "steppe/kernels/cuda_failure.h"
#include "steppe/kernels/rotary_backend.h"

namespace steppe::kernels::cuda {

void rotary(const Rotary&, void*) {
  throw_missing("rotary");
}
void rotary_tables(const RotaryTables&, void*) {
  throw_missing("rotary_tables");
}

}  // namespace steppe::kernels::cuda
