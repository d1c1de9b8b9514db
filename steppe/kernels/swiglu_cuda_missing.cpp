#include "steppe/kernels/cuda_failure.h"
#include "steppe/kernels/swiglu_backend.h"

namespace steppe::kernels::cuda {

void swiglu_forward(const SwigluForward&, void*) {
  throw_missing("swiglu_forward");
}
void swiglu_backward(const SwigluBackward&, void*) {
  throw_missing("swiglu_backward_inplace");
}

}  // namespace steppe::kernels::cuda
