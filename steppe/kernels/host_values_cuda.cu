#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "steppe/kernels/cuda_failure.h"
#include "steppe/kernels/host_values_backend.h"
#include "steppe/kernels/launch_cuda.cuh"

namespace steppe::kernels::cuda {
namespace {

constexpr int kValuesPerLaunch = 256;
struct HostValues {
  int32_t value[kValuesPerLaunch];
};

__global__ void put_host_values_kernel(int32_t* out, HostValues values, int count) {
  const int i = threadIdx.x;
  if (i < count) out[i] = values.value[i];
}

}  // namespace

void put_host_values(int32_t* out, std::span<const int32_t> values, const char* place, void* stream) {
  for (size_t begin = 0; begin < values.size(); begin += kValuesPerLaunch) {
    const auto part = values.subspan(begin, std::min<size_t>(kValuesPerLaunch, values.size() - begin));
    HostValues parameters;
    std::copy(part.begin(), part.end(), parameters.value);
    launch(put_host_values_kernel, 1, kValuesPerLaunch, stream, out + begin, parameters,
           static_cast<int>(part.size()));
  }
  check_launch(place);
}

}  // namespace steppe::kernels::cuda
