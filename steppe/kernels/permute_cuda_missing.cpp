#include "steppe/kernels/cuda_failure.h"
#include "steppe/kernels/permute_backend.h"

namespace steppe::kernels::cuda {

void sort_routes(const SortRoutes&, void*) {
  throw_missing("sort_routes");
}
void gather_rows(const ByteRows&, const int32_t*, int64_t, int64_t, void*) {
  throw_missing("gather_rows");
}
void gather_values(const GatherValues&, void*) {
  throw_missing("gather_values");
}
void combine_rows(const CombineRows&, void*) {
  throw_missing("combine_rows");
}
void copy_row_blocks(const ByteRows&, std::span<const RowBlock>, void*) {
  throw_missing("copy_row_blocks");
}

}  // namespace steppe::kernels::cuda
