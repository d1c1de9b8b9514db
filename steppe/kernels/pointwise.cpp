#include "steppe/kernels/pointwise.h"

#include <c10/core/ScalarType.h>
#include <fmt/ranges.h>

#include <array>
#include <cmath>
#include <string_view>
#include <vector>

#include "steppe/base/error.h"
#include "steppe/kernels/backend.h"
#include "steppe/kernels/pointwise_backend.h"

namespace steppe::kernels {
namespace {

void check_same_shape(const at::Tensor& x, const at::Tensor& like, std::string_view place,
                      std::string_view name) {
  STEPPE_CHECK_VALUE(x.sizes() == like.sizes(), "[{}] {} must have shape {}, got {}", place, name,
                     fmt::join(like.sizes(), "×"), fmt::join(x.sizes(), "×"));
}

void check_defined(const at::Tensor& x, std::string_view place, std::string_view name) {
  STEPPE_CHECK_VALUE(x.defined(), "[{}] {} must be a tensor, but is undefined", place, name);
}

bool last_dim_is_contiguous(const at::Tensor& x) {
  return x.dim() == 0 || x.size(-1) <= 1 || x.stride(-1) == 1;
}

// Folds neighbouring dimensions that both tensors walk with one stride.
RowPairs fold_rows(const at::Tensor& to, const at::Tensor& from, std::string_view place) {
  struct Dim {
    int64_t size = 1, to = 1, from = 1;
  };
  std::array<Dim, 3> folded;  // innermost first
  size_t used = 0;
  for (int64_t d = to.dim() - 1; d >= 0; --d) {
    if (to.size(d) == 1) continue;
    const Dim dim{to.size(d), to.stride(d), from.stride(d)};
    Dim& last = folded[used];
    if (last.size * last.to == dim.to && last.size * last.from == dim.from) {
      last.size *= dim.size;
      continue;
    }
    ++used;
    STEPPE_CHECK_VALUE(used < folded.size(), "[{}] strides {} and {} do not fold into two dimensions of rows",
                       place, fmt::join(to.strides(), ","), fmt::join(from.strides(), ","));
    folded[used] = dim;
  }
  const auto& [columns, inner, outer] = folded;
  return {.outer = used > 1 ? outer.size : 1,
          .inner = used > 0 ? inner.size : 1,
          .columns = columns.size,
          .to_outer = outer.to,
          .to_inner = inner.to,
          .from_outer = outer.from,
          .from_inner = inner.from};
}

ConstArray const_array(const at::Tensor& x, std::string_view place) {
  check_contiguous(x, place, "x");
  return {x.const_data_ptr(), element_of(x, place, "x"), x.numel()};
}

}  // namespace

void fill_zero(const at::Tensor& x) {
  check_defined(x, "fill_zero", "x");
  if (x.is_meta() || x.numel() == 0) return;
  x.zero_();
}

void add(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b) {
  constexpr std::string_view kPlace = "add";
  check_defined(out, kPlace, "out");
  const Element element = element_of(out, kPlace, "out");
  check_contiguous(out, kPlace, "out");
  for (const auto& [x, name] : {std::pair{&a, "a"}, std::pair{&b, "b"}}) {
    check_device(*x, out, kPlace, name);
    check_dtype(*x, out.scalar_type(), kPlace, name);
    check_same_shape(*x, out, kPlace, name);
    check_contiguous(*x, kPlace, name);
  }
  if (out.is_meta() || out.numel() == 0) return;
  const ConstArray left{a.const_data_ptr(), element, out.numel()};
  if (out.is_cuda()) return cuda::add(out.data_ptr(), b.const_data_ptr(), left, current_cuda_stream(out));
  cpu::add(out.data_ptr(), b.const_data_ptr(), left);
}

void scale(const at::Tensor& x, double factor) {
  check_defined(x, "scale", "x");
  const Element element = element_of(x, "scale", "x");
  check_contiguous(x, "scale", "x");
  if (x.is_meta() || x.numel() == 0) return;
  const auto rounded = static_cast<float>(factor);
  if (x.is_cuda()) return cuda::scale(x.data_ptr(), element, x.numel(), rounded, current_cuda_stream(x));
  cpu::scale(x.data_ptr(), element, x.numel(), rounded);
}

void add_to(const at::Tensor& accumulator, const at::Tensor& x) {
  constexpr std::string_view kPlace = "add_to";
  check_defined(accumulator, kPlace, "accumulator");
  check_device(x, accumulator, kPlace, "x");
  check_same_shape(x, accumulator, kPlace, "x");
  AddTo args;
  args.to_element = element_of(accumulator, kPlace, "accumulator");
  args.from_element = element_of(x, kPlace, "x");
  STEPPE_CHECK_VALUE(accumulator.scalar_type() == at::kFloat || args.from_element == args.to_element,
                     "[add_to] accumulator must be float32 or of x's dtype, got {} and {}",
                     c10::toString(accumulator.scalar_type()), c10::toString(x.scalar_type()));
  STEPPE_CHECK_VALUE(last_dim_is_contiguous(accumulator) && last_dim_is_contiguous(x),
                     "[add_to] last dimensions must be contiguous, got strides {} and {}",
                     fmt::join(accumulator.strides(), ","), fmt::join(x.strides(), ","));
  if (accumulator.numel() == 0) return;
  args.rows = fold_rows(accumulator, x, kPlace);
  if (accumulator.is_meta()) return;
  args.to = accumulator.data_ptr();
  args.from = x.const_data_ptr();
  if (accumulator.is_cuda()) return cuda::add_to(args, current_cuda_stream(accumulator));
  cpu::add_to(args);
}

void copy_cast(const at::Tensor& out, const at::Tensor& in) {
  constexpr std::string_view kPlace = "copy_cast";
  check_defined(out, kPlace, "out");
  check_device(in, out, kPlace, "in");
  check_same_shape(in, out, kPlace, "in");
  STEPPE_CHECK_VALUE(at::isFloatingType(out.scalar_type()) && at::isFloatingType(in.scalar_type()),
                     "[copy_cast] out and in must be of floating types, got {} and {}",
                     c10::toString(out.scalar_type()), c10::toString(in.scalar_type()));
  STEPPE_CHECK_VALUE(last_dim_is_contiguous(out) && last_dim_is_contiguous(in),
                     "[copy_cast] last dimensions must be contiguous, got strides {} and {}",
                     fmt::join(out.strides(), ","), fmt::join(in.strides(), ","));
  if (out.is_meta() || out.numel() == 0) return;
  out.copy_(in);  // ATen's casts are vectorized and allocate nothing between such layouts
}

void add_parts_in_order(const at::Tensor& accumulator, std::span<const at::Tensor> parts) {
  constexpr std::string_view kPlace = "add_parts_in_order";
  check_defined(accumulator, kPlace, "accumulator");
  check_dtype(accumulator, at::kFloat, kPlace, "accumulator");
  check_contiguous(accumulator, kPlace, "accumulator");
  if (parts.empty()) return;
  AddParts args;
  args.size = accumulator.numel();
  args.part_element = element_of(parts[0], kPlace, "parts[0]");
  std::vector<const void*> pointers;
  for (size_t p = 0; p < parts.size(); ++p) {
    const auto name = fmt::format("parts[{}]", p);
    check_device(parts[p], accumulator, kPlace, name);
    check_dtype(parts[p], parts[0].scalar_type(), kPlace, name);
    check_contiguous(parts[p], kPlace, name);
    STEPPE_CHECK_VALUE(parts[p].numel() == args.size, "[{}] {} must have {} elements, got {}", kPlace, name,
                       args.size, parts[p].numel());
    if (!accumulator.is_meta()) pointers.push_back(parts[p].const_data_ptr());
  }
  if (accumulator.is_meta() || args.size == 0) return;
  args.accumulator = accumulator.data_ptr<float>();
  args.parts = pointers;
  if (accumulator.is_cuda()) return cuda::add_parts_in_order(args, current_cuda_stream(accumulator));
  cpu::add_parts_in_order(args);
}

namespace {
void check_counter(const at::Tensor& out, at::ScalarType dtype, const at::Tensor& x, std::string_view place) {
  check_defined(x, place, "x");
  check_device(out, x, place, "out");
  check_dtype(out, dtype, place, "out");
  STEPPE_CHECK_VALUE(out.numel() == 1, "[{}] out must have 1 element, got {}", place, out.numel());
}
}  // namespace

void add_sum_of_squares(const at::Tensor& out, const at::Tensor& x) {
  constexpr std::string_view kPlace = "add_sum_of_squares";
  check_counter(out, at::kDouble, x, kPlace);
  if (x.is_meta() || x.numel() == 0) return;
  const ConstArray array = const_array(x, kPlace);
  if (x.is_cuda()) return cuda::add_sum_of_squares(out.data_ptr<double>(), array, current_cuda_stream(x));
  cpu::add_sum_of_squares(out.data_ptr<double>(), array);
}

void add_nonfinite_count(const at::Tensor& out, const at::Tensor& x) {
  constexpr std::string_view kPlace = "add_nonfinite_count";
  check_counter(out, at::kLong, x, kPlace);
  if (x.is_meta() || x.numel() == 0) return;
  const ConstArray array = const_array(x, kPlace);
  if (x.is_cuda()) return cuda::add_nonfinite_count(out.data_ptr<int64_t>(), array, current_cuda_stream(x));
  cpu::add_nonfinite_count(out.data_ptr<int64_t>(), array);
}

}  // namespace steppe::kernels
