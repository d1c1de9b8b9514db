#include "steppe/kernels/row_bias.h"

#include <string_view>

#include "steppe/base/error.h"
#include "steppe/kernels/backend.h"
#include "steppe/kernels/row_bias_backend.h"

namespace steppe::kernels {
namespace {

void check_vector(const at::Tensor& v, int64_t n, at::ScalarType dtype, const at::Tensor& rows,
                  std::string_view place, std::string_view name) {
  check_device(v, rows, place, name);
  check_dtype(v, dtype, place, name);
  check_contiguous(v, place, name);
  STEPPE_CHECK_VALUE(v.numel() == n, "[{}] {} must have {} elements, got {}", place, name, n, v.numel());
}

RowBias check_rows(const at::Tensor& rows, std::string_view place) {
  STEPPE_CHECK_VALUE(rows.defined(), "[{}] rows must be a tensor, but is undefined", place);
  const Element element = element_of(rows, place, "rows");
  const int64_t stride = row_stride(rows, place, "rows");
  return {.rows = rows.is_meta() ? nullptr : rows.data_ptr(),
          .element = element,
          .num_rows = rows.size(0),
          .columns = rows.size(1),
          .stride = stride};
}

const float* check_weights(const at::Tensor& weight, const at::Tensor& rows, std::string_view place) {
  if (!weight.defined()) return nullptr;
  check_vector(weight, rows.size(0), at::kFloat, rows, place, "row_weight");
  return weight.is_meta() ? nullptr : weight.const_data_ptr<float>();
}

}  // namespace

void add_row_bias(const at::Tensor& rows, const at::Tensor& bias, const at::Tensor& row_weight) {
  constexpr std::string_view kPlace = "add_row_bias";
  RowBias args = check_rows(rows, kPlace);
  check_vector(bias, args.columns, rows.scalar_type(), rows, kPlace, "bias");
  args.row_weight = check_weights(row_weight, rows, kPlace);
  if (rows.is_meta() || rows.numel() == 0) return;
  args.bias = bias.data_ptr();
  if (rows.is_cuda()) return cuda::add_row_bias(args, current_cuda_stream(rows));
  cpu::add_row_bias(args);
}

void add_column_sums(const at::Tensor& grad_bias, const at::Tensor& rows, const at::Tensor& row_weight) {
  constexpr std::string_view kPlace = "add_column_sums";
  RowBias args = check_rows(rows, kPlace);
  check_vector(grad_bias, args.columns, at::kFloat, rows, kPlace, "grad_bias");
  args.row_weight = check_weights(row_weight, rows, kPlace);
  if (rows.is_meta() || rows.numel() == 0) return;
  args.bias = grad_bias.data_ptr();
  if (rows.is_cuda()) return cuda::add_column_sums(args, current_cuda_stream(rows));
  cpu::add_column_sums(args);
}

void add_row_dots(const at::Tensor& out, const at::Tensor& rows, const at::Tensor& bias) {
  constexpr std::string_view kPlace = "add_row_dots";
  RowBias args = check_rows(rows, kPlace);
  check_vector(bias, args.columns, rows.scalar_type(), rows, kPlace, "bias");
  check_vector(out, args.num_rows, at::kFloat, rows, kPlace, "out");
  if (rows.is_meta() || rows.numel() == 0) return;
  args.bias = bias.data_ptr();
  args.out = out.data_ptr<float>();
  if (rows.is_cuda()) return cuda::add_row_dots(args, current_cuda_stream(rows));
  cpu::add_row_dots(args);
}

}  // namespace steppe::kernels
