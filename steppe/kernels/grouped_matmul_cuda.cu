#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "steppe/kernels/cuda_failure.h"
#include "steppe/kernels/grouped_matmul_backend.h"
#include "steppe/kernels/launch_cuda.cuh"

namespace steppe::kernels::cuda {
namespace {

constexpr int kEndsPerLaunch = 256;
struct RowEnds {
  int32_t end[kEndsPerLaunch];
};

__global__ void write_row_ends_kernel(int32_t* ends, RowEnds values, int count) {
  const int i = threadIdx.x;
  if (i < count) ends[i] = values.end[i];
}

}  // namespace

void write_row_ends(int32_t* ends, std::span<const int32_t> values, void* stream) {
  for (size_t begin = 0; begin < values.size(); begin += kEndsPerLaunch) {
    const auto part = values.subspan(begin, std::min<size_t>(kEndsPerLaunch, values.size() - begin));
    RowEnds parameters;
    std::copy(part.begin(), part.end(), parameters.end);
    launch(write_row_ends_kernel, 1, kEndsPerLaunch, stream, ends + begin, parameters,
           static_cast<int>(part.size()));
  }
  check_launch("row_groups");
}

}  // namespace steppe::kernels::cuda
