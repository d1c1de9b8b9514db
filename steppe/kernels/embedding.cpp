#include "steppe/kernels/embedding.h"

#include <fmt/format.h>

#include <string_view>

#include "steppe/base/error.h"
#include "steppe/kernels/backend.h"
#include "steppe/kernels/embedding_backend.h"

namespace steppe::kernels {
namespace {

// A table [V, H], activations [R, H] and ids [R], all on one device.
void check_operands(const at::Tensor& table, std::string_view table_name, const at::Tensor& rows,
                    std::string_view rows_name, const at::Tensor& ids, std::string_view place) {
  STEPPE_CHECK_VALUE(table.dim() == 2, "[{}] {} must have 2 dims, got {}", place, table_name, table.dim());
  check_contiguous(table, place, table_name);
  check_device(rows, table, place, rows_name);
  STEPPE_CHECK_VALUE(rows.dim() == 2 && rows.size(1) == table.size(1),
                     "[{}] {} must be [R, {}], got {} elements in {} dims", place, rows_name, table.size(1),
                     rows.numel(), rows.dim());
  check_device(ids, table, place, "ids");
  check_dtype(ids, at::kInt, place, "ids");
  check_contiguous(ids, place, "ids");
  STEPPE_CHECK_VALUE(ids.numel() == rows.size(0), "[{}] ids must have {} elements, got {}", place,
                     rows.size(0), ids.numel());
}

}  // namespace

void embedding_forward(const at::Tensor& out_RH, const at::Tensor& table_VH, const at::Tensor& ids_R,
                       int64_t first_row) {
  const char* place = "embedding_forward";
  check_operands(table_VH, "table", out_RH, "out", ids_R, place);
  check_dtype(out_RH, table_VH.scalar_type(), place, "out");
  const int64_t bytes = table_VH.element_size();
  EmbeddingForward args{.rows = out_RH.size(0),
                        .row_bytes = out_RH.size(1) * bytes,
                        .out_stride_bytes = row_stride(out_RH, place, "out") * bytes,
                        .first_row = first_row};
  if (out_RH.is_meta() || out_RH.numel() == 0) return;
  args.out = static_cast<char*>(out_RH.mutable_data_ptr());
  args.table = static_cast<const char*>(table_VH.const_data_ptr());
  args.ids = ids_R.const_data_ptr<int32_t>();
  if (out_RH.is_cuda()) return cuda::embedding_forward(args, current_cuda_stream(out_RH));
  cpu::embedding_forward(args);
}

void embedding_backward(const at::Tensor& grad_table_VH, const at::Tensor& dy_RH, const at::Tensor& ids_R,
                        int64_t first_row) {
  const char* place = "embedding_backward";
  check_operands(grad_table_VH, "grad_table", dy_RH, "dy", ids_R, place);
  check_dtype(grad_table_VH, at::kFloat, place, "grad_table");
  EmbeddingBackward args{.element = element_of(dy_RH, place, "dy"),
                         .rows = dy_RH.size(0),
                         .width = dy_RH.size(1),
                         .dy_stride = row_stride(dy_RH, place, "dy"),
                         .first_row = first_row};
  if (dy_RH.is_meta() || dy_RH.numel() == 0) return;
  args.grad_table = grad_table_VH.mutable_data_ptr<float>();
  args.dy = dy_RH.const_data_ptr();
  args.ids = ids_R.const_data_ptr<int32_t>();
  if (dy_RH.is_cuda()) return cuda::embedding_backward(args, current_cuda_stream(dy_RH));
  cpu::embedding_backward(args);
}

}  // namespace steppe::kernels
