#include "steppe/kernels/matmul.h"

#include <ATen/Context.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/mm.h>
#include <c10/core/ScalarType.h>

#include <algorithm>
#include <string_view>

#include "steppe/base/error.h"
#include "steppe/kernels/backend.h"
#include "steppe/kernels/pointwise.h"

namespace steppe::kernels {
namespace {

// What BLAS takes as it is: unit stride along one dimension, no overlap along the other.
bool is_blas_view(const at::Tensor& x) {
  const auto spans = [&](int unit, int other) {
    return (x.stride(unit) == 1 || x.size(unit) <= 1) &&
           (x.size(other) <= 1 || x.stride(other) >= std::max<int64_t>(1, x.size(unit)));
  };
  return x.numel() == 0 || spans(1, 0) || spans(0, 1);
}

void check_operand(std::string_view place, std::string_view name, const at::Tensor& x,
                   const at::Tensor& like) {
  check_device(x, like, place, name);
  STEPPE_CHECK_VALUE(x.dim() == 2, "[{}] {} must have 2 dimensions, got {}", place, name, x.dim());
  STEPPE_CHECK_VALUE(is_blas_view(x), "[{}] {} must have a unit stride, got strides {} and {}", place, name,
                     x.stride(0), x.stride(1));
}

// Shapes and devices, and the dtype of b.
void check(std::string_view place, const at::Tensor& out, const at::Tensor& a, const at::Tensor& b) {
  STEPPE_CHECK_VALUE(out.defined(), "[{}] out must be a tensor, but is undefined", place);
  check_operand(place, "out", out, out);
  check_operand(place, "a", a, out);
  check_operand(place, "b", b, out);
  STEPPE_CHECK_VALUE(b.size(0) == a.size(1), "[{}] b.size(0) must be a.size(1)={}, got {}", place, a.size(1),
                     b.size(0));
  STEPPE_CHECK_VALUE(out.size(0) == a.size(0) && out.size(1) == b.size(1),
                     "[{}] out must be [{}, {}], got [{}, {}]", place, a.size(0), b.size(1), out.size(0),
                     out.size(1));
  STEPPE_CHECK_VALUE(at::isFloatingType(a.scalar_type()), "[{}] a must be of a floating type, got {}", place,
                     c10::toString(a.scalar_type()));
  check_dtype(b, a.scalar_type(), place, "b");
}

// cuBLAS may cut long sums, but adds their parts in fp32: ATen's default lets it add them in bf16.
void round_once_on_cuda(const at::Tensor& x) {
  if (!x.is_cuda()) return;
  [[maybe_unused]] static const bool set = [] {
    at::globalContext().setAllowBF16ReductionCuBLAS(/*allow_reduced_precision=*/false, /*allow_splitk=*/true);
    return true;
  }();
}

// Accumulates in place: beta = 1, and the result is the addend.
void add_product(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b) {
  round_once_on_cuda(out);
  at::Tensor result = out;
  at::addmm_out(result, result, a, b, 1, 1);
}

}  // namespace

void matmul(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b) {
  check("matmul", out, a, b);
  check_dtype(out, a.scalar_type(), "matmul", "out");
  if (out.is_meta() || out.numel() == 0) return;
  if (a.size(1) == 0) {
    fill_zero(out);
    return;
  }
  round_once_on_cuda(out);
  at::Tensor result = out;
  at::mm_out(result, a, b);
}

void matmul_add(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b) {
  check("matmul_add", out, a, b);
  check_dtype(out, a.scalar_type(), "matmul_add", "out");
  if (out.is_meta() || out.numel() == 0 || a.size(1) == 0) return;
  add_product(out, a, b);
}

void matmul_accumulate(const at::Tensor& accumulator, const at::Tensor& a, const at::Tensor& b,
                       const at::Tensor& scratch) {
  constexpr std::string_view kPlace = "matmul_accumulate";
  check(kPlace, accumulator, a, b);
  check_dtype(accumulator, at::kFloat, kPlace, "accumulator");
  const bool same = a.scalar_type() == at::kFloat;
  if (!same) {
    check_dtype(a, at::kBFloat16, kPlace, "a");
    check_operand(kPlace, "scratch", scratch, accumulator);
    check_dtype(scratch, at::kBFloat16, kPlace, "scratch");
    check_contiguous(scratch, kPlace, "scratch");
    STEPPE_CHECK_VALUE(scratch.sizes() == accumulator.sizes(), "[{}] scratch must be [{}, {}], got [{}, {}]",
                       kPlace, accumulator.size(0), accumulator.size(1), scratch.size(0), scratch.size(1));
  }
  if (accumulator.is_meta() || accumulator.numel() == 0 || a.size(1) == 0) return;
  if (same) {
    add_product(accumulator, a, b);
  } else {
    round_once_on_cuda(scratch);
    at::Tensor product = scratch;
    at::mm_out(product, a, b);
    add_to(accumulator, scratch);
  }
}

}  // namespace steppe::kernels
