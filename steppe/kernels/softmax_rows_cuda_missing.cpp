#include "steppe/kernels/cuda_failure.h"
#include "steppe/kernels/softmax_rows_backend.h"

namespace steppe::kernels::cuda {

void soft_cap(const LogitStrip&, void*) {
  throw_missing("soft_cap");
}
void logit_statistics(float*, const LogitStrip&, void*) {
  throw_missing("logit_statistics");
}
void merge_statistics(float*, const float*, int64_t, int64_t, void*) {
  throw_missing("merge_statistics");
}
void add_loss(const LossRows&, void*) {
  throw_missing("add_loss");
}
void logits_to_gradient(const LogitStrip&, const float*, const float*, void*) {
  throw_missing("logits_to_gradient");
}

}  // namespace steppe::kernels::cuda
