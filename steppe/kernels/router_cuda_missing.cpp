#include "steppe/kernels/cuda_failure.h"
#include "steppe/kernels/router_backend.h"

namespace steppe::kernels::cuda {

void softmax_rows(float*, const float*, float*, const RouterRows&, void*) {
  throw_missing("softmax_rows");
}
void top_k(int32_t*, const float*, const float*, const RouterRows&, void*) {
  throw_missing("top_k");
}
void gather_scores(float*, const float*, const int32_t*, const RouterRows&, bool, void*) {
  throw_missing("gather_scores");
}
void router_backward(const RouterBackwardPointers&, const RouterRows&, void*) {
  throw_missing("router_backward");
}
void count_routes(int64_t*, const int32_t*, int64_t, int64_t, void*) {
  throw_missing("count_routes");
}

}  // namespace steppe::kernels::cuda
