// For tests of CUDA kernels: the CPU's kernel, tested on its own, is what the device must agree with.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "steppe/kernels/compare_test.h"
#include "steppe/kernels/device_tensors_test.h"

namespace steppe::kernels {

// Skipped where there is no device.
class DeviceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!has_device()) GTEST_SKIP() << "no CUDA device";
    at::manual_seed(1);
  }
};

// With the same strides, and the same gaps between rows.
inline at::Tensor copy_of(const at::Tensor& x) {
  if (!x.defined()) return {};
  auto copy = at::empty_strided(x.sizes(), x.strides(), x.options());
  copy.copy_(x);
  return copy;
}

// Rows inside a wider tensor.
inline at::Tensor with_gaps(const at::Tensor& x) {
  auto wide = at::zeros({x.size(0), x.size(1) + 8}, x.options());
  auto rows = wide.narrow(1, 0, x.size(1));
  rows.copy_(x);
  return rows;
}

// The largest difference, of the largest finite value. Equal infinities and NaNs are equal.
inline double device_error(const at::Tensor& got, const at::Tensor& want) {
  if (want.numel() == 0) return 0;
  const auto a = got.to(at::kDouble), b = want.to(at::kDouble);
  const auto same = a.eq(b).logical_or(a.isnan().logical_and(b.isnan()));
  const auto difference = at::where(same, at::zeros_like(a), a.sub(b).abs());
  const auto size = at::where(b.isfinite(), b.abs(), at::zeros_like(b)).max().item<double>();
  return difference.max().item<double>() / std::max(size, 1e-300);
}

using Tensors = std::vector<at::Tensor>;

inline bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  const auto bytes = [](const at::Tensor& x) { return x.contiguous().view({-1}).view(at::kByte); };
  return a.sizes() == b.sizes() && bytes(a).equal(bytes(b));
}

// What a kernel leaves of the given tensors in copies of them on the device.
inline Tensors run_on_device(const Tensors& tensors, const std::function<void(const Tensors&)>& kernel) {
  Tensors on_device, results;
  for (const auto& x : tensors) on_device.push_back(x.defined() ? to_device(x) : x);
  kernel(on_device);
  for (const auto& x : on_device) results.push_back(x.defined() ? to_host(x) : x);
  return results;
}

// Runs a kernel on the given tensors and on copies on the device; then all of them must agree, written or
// not, within `bound`; with bound 0, bit for bit. A second time on the device, the bits must be the same.
inline void expect_device_agrees(const Tensors& tensors, double bound,
                                 const std::function<void(const Tensors&)>& kernel) {
  Tensors on_cpu;
  for (const auto& x : tensors) on_cpu.push_back(copy_of(x));
  kernel(on_cpu);
  const auto on_device = run_on_device(tensors, kernel), again = run_on_device(tensors, kernel);
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (!tensors[i].defined()) continue;
    const auto& got = on_device[i];
    EXPECT_TRUE(same_bits(got, again[i])) << "tensor " << i << " has other bits the second time";
    if (bound == 0) {
      EXPECT_TRUE(got.equal(on_cpu[i])) << "tensor " << i;
    } else {
      EXPECT_LE(device_error(got, on_cpu[i]), bound) << "tensor " << i;
    }
  }
}

// Of values that were computed in fp32 in another order, and rounded to the dtype.
inline double device_bound(at::ScalarType dtype) {
  return 4e-6 + (dtype == at::kBFloat16 ? 2 * unit_roundoff(dtype) : 0);
}

inline const std::vector<at::ScalarType> kDtypes = {at::kFloat, at::kBFloat16};

}  // namespace steppe::kernels
