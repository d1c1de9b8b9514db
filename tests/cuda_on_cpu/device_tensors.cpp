// Tensors on the emulated device: to ATen they are of CUDA, but their memory is the CPU's.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "steppe/base/error.h"
#include "steppe/kernels/backend.h"
#include "steppe/kernels/cuda_failure.h"
#include "steppe/kernels/device_tensors_test.h"

namespace steppe::kernels {
namespace {

// Before and behind a tensor, and between its rows: not a number, and nobody's to write.
constexpr int kFill = 0xff;
constexpr int64_t kMargin = 64;

int64_t extent_bytes(const at::Tensor& x) {
  int64_t last = 0;
  for (int64_t d = 0; d < x.dim(); ++d) last += (x.size(d) - 1) * x.stride(d);
  return x.numel() == 0 ? 0 : (last + 1) * x.element_size();
}

char* bytes_of(const at::Tensor& x) {
  return static_cast<char*>(const_cast<void*>(x.storage().data()));
}

at::Tensor on_cpu(const at::Tensor& like, void* memory, at::ScalarType dtype) {
  return at::from_blob(memory, like.sizes(), like.strides(), at::TensorOptions(dtype));
}

at::ScalarType integer_of_size(int64_t bytes) {
  return bytes == 2 ? at::kShort : bytes == 4 ? at::kInt : bytes == 8 ? at::kLong : at::kByte;
}

}  // namespace

bool has_device() {
  return true;
}

at::Tensor to_device(const at::Tensor& x) {
  const int64_t bytes = extent_bytes(x) + 2 * kMargin;
  auto memory = std::make_unique<char[]>(static_cast<size_t>(bytes));
  std::memset(memory.get(), kFill, static_cast<size_t>(bytes));
  on_cpu(x, memory.get() + kMargin, x.scalar_type()).copy_(x);
  c10::DataPtr data(
      memory.get(), memory.get(), [](void* p) { delete[] static_cast<char*>(p); }, at::Device(at::kCUDA, 0));
  memory.release();
  c10::Storage storage(c10::Storage::use_byte_size_t{}, static_cast<size_t>(bytes), std::move(data));
  auto impl = c10::make_intrusive<c10::TensorImpl>(std::move(storage),
                                                   c10::DispatchKeySet(c10::DispatchKey::CUDA), x.dtype());
  impl->set_sizes_and_strides(x.sizes(), x.strides(), kMargin / x.element_size());
  return at::Tensor(std::move(impl));
}

at::Tensor to_host(const at::Tensor& x) {
  const auto result = on_cpu(x, bytes_of(x) + kMargin, x.scalar_type()).clone();
  std::vector<char> rest(bytes_of(x), bytes_of(x) + x.storage().nbytes());
  on_cpu(x, rest.data() + kMargin, integer_of_size(x.element_size())).fill_(-1);
  EXPECT_TRUE(std::ranges::all_of(rest, [](char byte) { return byte == static_cast<char>(kFill); }))
      << "a kernel wrote beside its rows";
  return result;
}

void* current_cuda_stream(const at::Tensor&) {
  return nullptr;
}

namespace cuda {

void check_launch(const char*) {}

void throw_missing(const char* place) {
  throw InternalError(fmt::format("[{}] the stand-in of a build without CUDA was called", place));
}

}  // namespace cuda
}  // namespace steppe::kernels
