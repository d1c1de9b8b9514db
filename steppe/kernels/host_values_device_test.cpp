#include <numeric>

#include "steppe/kernels/backend.h"
#include "steppe/kernels/device_test.h"
#include "steppe/kernels/host_values_backend.h"

namespace steppe::kernels {
namespace {

using HostValuesDevice = DeviceTest;

// One launch, a whole one, and several with a part.
TEST_F(HostValuesDevice, AreWrittenWhereTheyBelong) {
  for (const int64_t count : {0, 1, 255, 256, 257, 1023}) {
    std::vector<int32_t> values(count);
    std::iota(values.begin(), values.end(), 7);
    const auto on_device = to_device(at::zeros({count}, at::kInt));
    cuda::put_host_values(on_device.mutable_data_ptr<int32_t>(), values, "test",
                          current_cuda_stream(on_device));
    EXPECT_TRUE(to_host(on_device).equal(at::tensor(values, at::kInt))) << count;
  }
}

}  // namespace
}  // namespace steppe::kernels
