// Products of groups of rows, each with a matrix of its own: the experts'. Rows of a group follow each other,
// groups follow each other, and any may be empty; their sizes come from the host.
//   grouped_matmul             out[g] = a[g]·b_g         forward, and the gradient of the rows
//   grouped_matmul_accumulate  acc_g += a[g]ᵀ·b[g]       the gradient of the matrices
//
// a [R, k], b [G, k, n] (stride 1 along k or n), out [R, n]; for the second a [R, m], b [R, n], acc [G, m,
// n], fp32 or of the operands' dtype. Dtypes and what else a view must be: matmul.h. Functions fill given
// tensors and return at once on `meta`.
//
// bf16 on a device of compute capability 9 or 10: all groups in one launch of the library's grouped kernel,
// which sums in fp32 as the single products do. It wants pointers and strides of 16 bytes; products whose
// widths do not give those, as well as fp32 ones, all on a CPU, and a single group, are a loop of products.
// The second form is a loop everywhere: the grouped kernel can only write bf16, so it would take G matrices
// of room for the products, where a loop takes one, and round no less before the sum in fp32.
// Allocates nothing; the library's tables and workspace (about 100 KiB) belong to its own. RowGroups
// allocates 4·G bytes where groups can be multiplied at once. Deterministic. No host sync.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace steppe::kernels {

// Whether groups of x's rows can be multiplied at once on its device; on `meta`, on that it stands for.
bool multiplies_groups_at_once(const at::Tensor& x);

class RowGroups {
 public:
  // `x`: whose rows they are. Where its groups are multiplied at once, the device is told their ends, by
  // kernel parameters.
  RowGroups(std::vector<int64_t> rows, const at::Tensor& x);

  const std::vector<int64_t>& rows() const { return rows_; }
  int64_t size() const { return static_cast<int64_t>(rows_.size()); }
  int64_t total() const { return total_; }
  // The row after each group's last, int32 [G] on the device; undefined where a loop does it.
  const at::Tensor& ends() const { return ends_; }

 private:
  std::vector<int64_t> rows_;
  int64_t total_ = 0;
  at::Tensor ends_;
};

void grouped_matmul(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, const RowGroups& groups);

// `scratch` [m, n] as in matmul_accumulate; unused where accumulators are of the operands' dtype. A group
// without rows leaves its accumulator as it is.
void grouped_matmul_accumulate(const at::Tensor& accumulators, const at::Tensor& a, const at::Tensor& b,
                               const RowGroups& groups, const at::Tensor& scratch);

}  // namespace steppe::kernels
