#include "steppe/comm/sum_in_order.h"

#include <ATen/Parallel.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <cstdint>

#include "steppe/base/error.h"

namespace steppe::comm {
namespace {

// The accumulator's block stays in the first-level cache while the parts pass by.
constexpr int64_t kBlock = 2048;

template <typename Sum, typename Part>
void add_on_cpu(const at::Tensor& accumulator, std::span<const at::Tensor> parts) {
  Sum* const sums = accumulator.mutable_data_ptr<Sum>();
  at::parallel_for(0, accumulator.numel(), 16 * kBlock, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; block += kBlock) {
      const int64_t block_end = std::min(block + kBlock, end);
      for (const at::Tensor& part : parts) {
        const Part* const values = part.const_data_ptr<Part>();
        for (int64_t i = block; i < block_end; ++i) sums[i] += static_cast<Sum>(values[i]);
      }
    }
  });
}

}  // namespace

void check_summable(const std::string& group_name, const at::Tensor& accumulator, const at::Tensor& full) {
  const auto sum = accumulator.scalar_type(), part = full.scalar_type();
  const bool single = sum == at::kFloat && (part == at::kFloat || part == at::kBFloat16 || part == at::kHalf);
  STEPPE_CHECK_VALUE(
      single || (sum == at::kDouble && part == at::kDouble),
      "[comm {}] reduce_scatter_add: cannot add {} to an accumulator of {}; it must be float for float, "
      "bfloat16 and half, or double for double",
      group_name, at::toString(part), at::toString(sum));
}

void add_in_order(const at::Tensor& accumulator, std::span<const at::Tensor> parts) {
  if (accumulator.is_meta() || accumulator.numel() == 0) return;
  if (!accumulator.is_cpu()) {
    // One fused pass each; mixed dtypes are converted in registers there.
    for (const at::Tensor& part : parts) accumulator.add_(part.view_as(accumulator));
    return;
  }
  const auto dtype = parts.front().scalar_type();
  if (dtype == at::kDouble) return add_on_cpu<double, double>(accumulator, parts);
  if (dtype == at::kBFloat16) return add_on_cpu<float, c10::BFloat16>(accumulator, parts);
  if (dtype == at::kHalf) return add_on_cpu<float, c10::Half>(accumulator, parts);
  add_on_cpu<float, float>(accumulator, parts);
}

}  // namespace steppe::comm
