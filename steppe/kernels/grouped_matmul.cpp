#include "steppe/kernels/grouped_matmul.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "steppe/base/error.h"
#include "steppe/kernels/backend.h"
#include "steppe/kernels/grouped_matmul_backend.h"
#include "steppe/kernels/host_values_backend.h"
#include "steppe/kernels/matmul.h"
#include "steppe/kernels/meta_device.h"

namespace steppe::kernels {
namespace {

constexpr int64_t kMostGroups = 1023;  // of the library's kernel
constexpr int64_t kAlignedBytes = 16;  // of its pointers and strides

void check_groups(std::string_view place, const at::Tensor& matrices, std::string_view name,
                  const at::Tensor& rows, const RowGroups& groups) {
  STEPPE_CHECK_VALUE(matrices.dim() == 3 && matrices.size(0) == groups.size(),
                     "[{}] {} must be [{}, ·, ·], one matrix a group, got {} dimensions and {} of them",
                     place, name, groups.size(), matrices.dim(), matrices.dim() > 0 ? matrices.size(0) : 0);
  STEPPE_CHECK_VALUE(rows.dim() == 2 && rows.size(0) == groups.total(),
                     "[{}] a must have {} rows, those of all groups, got {}", place, groups.total(),
                     rows.dim() > 0 ? rows.size(0) : 0);
}

// Calls use(group, its first row, its rows) for those that have any.
template <class Use>
void for_groups(const RowGroups& groups, Use use) {
  int64_t begin = 0;
  for (int64_t g = 0; g < groups.size(); ++g) {
    const int64_t rows = groups.rows()[g];
    if (rows > 0) use(g, begin, rows);
    begin += rows;
  }
}

}  // namespace

bool fits_grouped_kernel(const at::Tensor& x) {
  const int64_t size = x.element_size();
  int num_units = 0;
  for (int64_t dim = 0; dim < x.dim(); ++dim) {
    if (x.stride(dim) == 1)
      ++num_units;
    else if (x.stride(dim) * size % kAlignedBytes != 0)
      return false;
  }
  return num_units == 1 &&
         (x.is_meta() || reinterpret_cast<uintptr_t>(x.const_data_ptr()) % kAlignedBytes == 0);
}

bool multiplies_groups_at_once(const at::Tensor& x) {
  if (x.scalar_type() != at::kBFloat16) return false;
  if (x.is_meta()) return meta_device() == at::kCUDA;
  return x.is_cuda() && cuda::has_grouped_kernel(x);
}

RowGroups::RowGroups(std::vector<int64_t> rows, const at::Tensor& x) : rows_(std::move(rows)) {
  for (const int64_t count : rows_) {
    STEPPE_CHECK_VALUE(count >= 0, "[row_groups] a group must have 0 or more rows, got {}", count);
    total_ += count;
  }
  const auto num_groups = size() - std::count(rows_.begin(), rows_.end(), 0);
  if (num_groups < 2 || size() > kMostGroups || !multiplies_groups_at_once(x)) return;
  ends_ = at::empty({size()}, x.options().dtype(at::kInt));
  if (x.is_meta()) return;
  std::vector<int32_t> ends(rows_.size());
  std::partial_sum(rows_.begin(), rows_.end(), ends.begin());
  cuda::put_host_values(ends_.mutable_data_ptr<int32_t>(), ends, "row_groups", current_cuda_stream(x));
}

void grouped_matmul(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b,
                    const RowGroups& groups) {
  constexpr std::string_view kPlace = "grouped_matmul";
  check_groups(kPlace, b, "b", a, groups);
  if (groups.ends().defined() && !out.is_meta() && fits_grouped_kernel(out) && fits_grouped_kernel(a) &&
      fits_grouped_kernel(b)) {
    check_device(out, a, kPlace, "out");
    check_device(b, a, kPlace, "b");
    for (const auto& [x, name] : {std::pair{&out, "out"}, {&a, "a"}, {&b, "b"}})
      check_dtype(*x, at::kBFloat16, kPlace, name);
    STEPPE_CHECK_VALUE(b.size(1) == a.size(1) && out.size(0) == a.size(0) && out.size(1) == b.size(2),
                       "[{}] out must be [{}, {}] and b [·, {}, ·], got [{}, {}] and [·, {}, ·]", kPlace,
                       a.size(0), b.size(2), a.size(1), out.size(0), out.size(1), b.size(1));
    if (out.numel() > 0 && a.size(1) > 0) return cuda::grouped_matmul(out, a, b, groups.ends());
  }
  for_groups(groups, [&](int64_t g, int64_t begin, int64_t rows) {
    matmul(out.narrow(0, begin, rows), a.narrow(0, begin, rows), b.select(0, g));
  });
}

void grouped_matmul_accumulate(const at::Tensor& accumulators, const at::Tensor& a, const at::Tensor& b,
                               const RowGroups& groups, const at::Tensor& scratch) {
  check_groups("grouped_matmul_accumulate", accumulators, "accumulators", a, groups);
  const bool same = accumulators.scalar_type() == a.scalar_type();
  for_groups(groups, [&](int64_t g, int64_t begin, int64_t rows) {
    const auto accumulator = accumulators.select(0, g);
    const auto a_t = a.narrow(0, begin, rows).t(), b_g = b.narrow(0, begin, rows);
    if (same)
      matmul_add(accumulator, a_t, b_g);
    else
      matmul_accumulate(accumulator, a_t, b_g, scratch);
  });
}

}  // namespace steppe::kernels
