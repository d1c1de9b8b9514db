#include "steppe/base/error.h"
#include "steppe/kernels/attention_backend.h"

namespace steppe::kernels {

AttentionOutput attention_forward_cuda(const AttentionInput&) {
  throw RuntimeFailure("[attention_forward] this program was built without CUDA");
}

AttentionGradients attention_backward_cuda(const at::Tensor&, const AttentionInput&, const AttentionOutput&) {
  throw RuntimeFailure("[attention_backward] this program was built without CUDA");
}

}  // namespace steppe::kernels
