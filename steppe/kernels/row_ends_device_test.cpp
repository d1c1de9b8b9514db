#include <numeric>

#include "steppe/kernels/backend.h"
#include "steppe/kernels/device_test.h"
#include "steppe/kernels/grouped_matmul_backend.h"

namespace steppe::kernels {
namespace {

using RowEndsDevice = DeviceTest;

// One launch, a whole one, and several with a part.
TEST_F(RowEndsDevice, AreWrittenWhereTheyBelong) {
  for (const int64_t num_groups : {0, 1, 255, 256, 257, 1023}) {
    std::vector<int32_t> ends(num_groups);
    std::iota(ends.begin(), ends.end(), 7);
    const auto on_device = to_device(at::zeros({num_groups}, at::kInt));
    cuda::write_row_ends(on_device.mutable_data_ptr<int32_t>(), ends, current_cuda_stream(on_device));
    EXPECT_TRUE(to_host(on_device).equal(at::tensor(ends, at::kInt))) << num_groups;
  }
}

}  // namespace
}  // namespace steppe::kernels
