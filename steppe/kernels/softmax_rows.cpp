#include "steppe/kernels/softmax_rows.h"

#include <fmt/format.h>

#include <string_view>

#include "steppe/base/error.h"
#include "steppe/kernels/backend.h"
#include "steppe/kernels/softmax_rows_backend.h"

namespace steppe::kernels {
namespace {

// A contiguous vector [n] of the given dtype, where `where` lies.
void check_vector(const at::Tensor& x, int64_t n, at::ScalarType dtype, const at::Tensor& where,
                  std::string_view place, std::string_view name) {
  check_device(x, where, place, name);
  check_dtype(x, dtype, place, name);
  check_contiguous(x, place, name);
  STEPPE_CHECK_VALUE(x.dim() == 1 && x.size(0) == n, "[{}] {} must be [{}], got {} elements in {} dims",
                     place, name, n, x.numel(), x.dim());
}

void check_stats(const at::Tensor& x, int64_t rows, const at::Tensor& where, std::string_view place,
                 std::string_view name) {
  check_device(x, where, place, name);
  check_dtype(x, at::kFloat, place, name);
  check_contiguous(x, place, name);
  STEPPE_CHECK_VALUE(x.dim() == 2 && x.size(0) == rows && x.size(1) == 3,
                     "[{}] {} must be [{}, 3], got {} elements in {} dims", place, name, rows, x.numel(),
                     x.dim());
}

LogitStrip strip_of(const at::Tensor& logits, const at::Tensor& targets, int64_t first_column,
                    std::string_view place) {
  const int64_t stride = row_stride(logits, place, "logits");
  check_vector(targets, logits.size(0), at::kInt, logits, place, "targets");
  STEPPE_CHECK_VALUE(first_column >= 0, "[{}] first_column must not be negative, got {}", place,
                     first_column);
  LogitStrip strip{.element = element_of(logits, place, "logits"),
                   .rows = logits.size(0),
                   .columns = logits.size(1),
                   .row_stride = stride,
                   .first_column = first_column};
  if (logits.is_meta()) return strip;
  strip.logits = logits.data_ptr();
  strip.targets = targets.const_data_ptr<int32_t>();
  return strip;
}

LogitStrip gradient_strip(const at::Tensor& stats, const at::Tensor& logits, const at::Tensor& targets,
                          const at::Tensor& row_weight, int64_t first_column, const LossShape& shape,
                          std::string_view place) {
  LogitStrip strip = strip_of(logits, targets, first_column, place);
  strip.softcap = static_cast<float>(shape.softcap);
  strip.z_loss_coeff = static_cast<float>(shape.z_loss_coeff);
  check_stats(stats, strip.rows, logits, place, "stats");
  check_vector(row_weight, strip.rows, at::kFloat, logits, place, "row_weight");
  return strip;
}

}  // namespace

void soft_cap(const at::Tensor& logits_Rv, double cap) {
  const char* place = "soft_cap";
  STEPPE_CHECK_VALUE(cap > 0, "[{}] cap must be above 0, got {}", place, cap);
  LogitStrip strip{.element = element_of(logits_Rv, place, "logits"),
                   .rows = logits_Rv.size(0),
                   .columns = logits_Rv.size(1),
                   .row_stride = row_stride(logits_Rv, place, "logits"),
                   .softcap = static_cast<float>(cap)};
  if (logits_Rv.is_meta() || logits_Rv.numel() == 0) return;
  strip.logits = logits_Rv.data_ptr();
  if (logits_Rv.is_cuda()) return cuda::soft_cap(strip, current_cuda_stream(logits_Rv));
  cpu::soft_cap(strip);
}

void logit_statistics(const at::Tensor& stats_R3, const at::Tensor& logits_Rv, const at::Tensor& targets_R,
                      int64_t first_column) {
  const char* place = "logit_statistics";
  const LogitStrip strip = strip_of(logits_Rv, targets_R, first_column, place);
  check_stats(stats_R3, strip.rows, logits_Rv, place, "stats");
  if (logits_Rv.is_meta() || strip.rows == 0) return;
  float* stats = stats_R3.mutable_data_ptr<float>();
  if (logits_Rv.is_cuda()) return cuda::logit_statistics(stats, strip, current_cuda_stream(logits_Rv));
  cpu::logit_statistics(stats, strip);
}

void merge_statistics(const at::Tensor& merged_R3, const at::Tensor& parts_PR3) {
  const char* place = "merge_statistics";
  check_device(parts_PR3, merged_R3, place, "parts");
  check_dtype(parts_PR3, at::kFloat, place, "parts");
  check_contiguous(parts_PR3, place, "parts");
  STEPPE_CHECK_VALUE(parts_PR3.dim() == 3 && parts_PR3.size(2) == 3,
                     "[{}] parts must be [P, R, 3], got {} elements in {} dims", place, parts_PR3.numel(),
                     parts_PR3.dim());
  const int64_t num_parts = parts_PR3.size(0), rows = parts_PR3.size(1);
  check_stats(merged_R3, rows, parts_PR3, place, "merged");
  if (merged_R3.is_meta() || rows == 0) return;
  float* merged = merged_R3.mutable_data_ptr<float>();
  const float* parts = parts_PR3.const_data_ptr<float>();
  if (merged_R3.is_cuda())
    return cuda::merge_statistics(merged, parts, num_parts, rows, current_cuda_stream(merged_R3));
  cpu::merge_statistics(merged, parts, num_parts, rows);
}

void add_loss(const at::Tensor& loss_1, const at::Tensor& row_loss_R, const at::Tensor& stats_R3,
              const at::Tensor& targets_R, const at::Tensor& row_weight_R, const LossShape& shape) {
  const char* place = "add_loss";
  const int64_t rows = targets_R.size(0);
  check_vector(targets_R, rows, at::kInt, stats_R3, place, "targets");
  check_stats(stats_R3, rows, targets_R, place, "stats");
  check_vector(loss_1, 1, at::kDouble, stats_R3, place, "loss");
  if (row_weight_R.defined()) check_vector(row_weight_R, rows, at::kFloat, stats_R3, place, "row_weight");
  if (row_loss_R.defined()) check_vector(row_loss_R, rows, at::kFloat, stats_R3, place, "row_loss");
  if (stats_R3.is_meta() || rows == 0) return;
  const LossRows args{.loss = loss_1.mutable_data_ptr<double>(),
                      .row_loss = row_loss_R.defined() ? row_loss_R.mutable_data_ptr<float>() : nullptr,
                      .stats = stats_R3.const_data_ptr<float>(),
                      .targets = targets_R.const_data_ptr<int32_t>(),
                      .row_weight = row_weight_R.defined() ? row_weight_R.const_data_ptr<float>() : nullptr,
                      .rows = rows,
                      .z_loss_coeff = shape.z_loss_coeff};
  if (stats_R3.is_cuda()) return cuda::add_loss(args, current_cuda_stream(stats_R3));
  cpu::add_loss(args);
}

void logits_to_gradient(const at::Tensor& logits_Rv, const at::Tensor& stats_R3, const at::Tensor& targets_R,
                        const at::Tensor& row_weight_R, int64_t first_column, const LossShape& shape) {
  const LogitStrip strip =
      gradient_strip(stats_R3, logits_Rv, targets_R, row_weight_R, first_column, shape, "logits_to_gradient");
  if (logits_Rv.is_meta() || strip.rows == 0 || strip.columns == 0) return;
  const float* stats = stats_R3.const_data_ptr<float>();
  const float* row_weight = row_weight_R.const_data_ptr<float>();
  if (logits_Rv.is_cuda())
    return cuda::logits_to_gradient(strip, stats, row_weight, current_cuda_stream(logits_Rv));
  cpu::logits_to_gradient(strip, stats, row_weight);
}

void statistics_and_gradient(const at::Tensor& stats_R3, const at::Tensor& logits_Rv,
                             const at::Tensor& targets_R, const at::Tensor& row_weight_R,
                             int64_t first_column, const LossShape& shape) {
  const LogitStrip strip = gradient_strip(stats_R3, logits_Rv, targets_R, row_weight_R, first_column, shape,
                                          "statistics_and_gradient");
  if (logits_Rv.is_meta() || strip.rows == 0) return;
  float* stats = stats_R3.mutable_data_ptr<float>();
  const float* row_weight = row_weight_R.const_data_ptr<float>();
  if (logits_Rv.is_cuda()) {
    void* stream = current_cuda_stream(logits_Rv);
    cuda::logit_statistics(stats, strip, stream);
    if (strip.columns > 0) cuda::logits_to_gradient(strip, stats, row_weight, stream);
    return;
  }
  cpu::statistics_and_gradient(stats, strip, row_weight);
}

}  // namespace steppe::kernels
