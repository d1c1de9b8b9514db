#include "steppe/kernels/permute.h"

#include <fmt/format.h>

#include <string_view>

#include "steppe/base/error.h"
#include "steppe/kernels/backend.h"
#include "steppe/kernels/permute_backend.h"

namespace steppe::kernels {
namespace {

void check_index(const at::Tensor& x, int64_t n, const at::Tensor& where, std::string_view place,
                 std::string_view name) {
  check_device(x, where, place, name);
  check_dtype(x, at::kInt, place, name);
  check_contiguous(x, place, name);
  STEPPE_CHECK_VALUE(x.numel() == n, "[{}] {} must have {} elements, got {}", place, name, n, x.numel());
}

ByteRows byte_rows(const at::Tensor& out, const at::Tensor& in, std::string_view place) {
  check_device(in, out, place, "in");
  check_dtype(in, out.scalar_type(), place, "in");
  STEPPE_CHECK_VALUE((out.dim() == 1 || out.dim() == 2) && in.dim() == out.dim(),
                     "[{}] out and in must both have 1 or 2 dims, got {} and {}", place, out.dim(), in.dim());
  const int64_t bytes = out.element_size();
  ByteRows rows;
  if (out.dim() == 1) {
    rows = {.row = bytes, .out_stride = out.stride(0) * bytes, .in_stride = in.stride(0) * bytes};
  } else {
    rows = {.row = out.size(1) * bytes,
            .out_stride = row_stride(out, place, "out") * bytes,
            .in_stride = row_stride(in, place, "in") * bytes};
    STEPPE_CHECK_VALUE(in.size(1) == out.size(1), "[{}] in must have out's {} columns, got {}", place,
                       out.size(1), in.size(1));
  }
  if (out.is_meta()) return rows;
  rows.out = static_cast<char*>(out.mutable_data_ptr());
  rows.in = static_cast<const char*>(in.const_data_ptr());
  return rows;
}

}  // namespace

void sort_routes(const at::Tensor& slot_of_route, const at::Tensor& route_of_slot, const at::Tensor& ids_Nk,
                 std::span<const int64_t> first_slot_of_expert) {
  const char* place = "sort_routes";
  const int64_t routes = ids_Nk.numel();
  check_index(ids_Nk, routes, slot_of_route, place, "ids");
  check_index(slot_of_route, routes, ids_Nk, place, "slot_of_route");
  check_index(route_of_slot, routes, ids_Nk, place, "route_of_slot");
  for (size_t e = 0; e < first_slot_of_expert.size(); ++e) {
    const int64_t first = first_slot_of_expert[e], least = e == 0 ? 0 : first_slot_of_expert[e - 1];
    STEPPE_CHECK_VALUE(first >= least && first <= routes,
                       "[{}] first_slot_of_expert[{}] must be from {} to N·k={}, got {}", place, e, least,
                       routes, first);
  }
  if (ids_Nk.is_meta() || routes == 0) return;
  const SortRoutes args{.slot_of_route = slot_of_route.mutable_data_ptr<int32_t>(),
                        .route_of_slot = route_of_slot.mutable_data_ptr<int32_t>(),
                        .ids = ids_Nk.const_data_ptr<int32_t>(),
                        .routes = routes,
                        .first_slot_of_expert = first_slot_of_expert};
  if (ids_Nk.is_cuda()) return cuda::sort_routes(args, current_cuda_stream(ids_Nk));
  const int64_t bad = cpu::sort_routes(args);
  STEPPE_CHECK_VALUE(
      bad < 0,
      "[{}] route {} to expert {} has no slot: ids must be below E={} and agree with the counts that "
      "first_slot_of_expert sums",
      place, bad, args.ids[bad], first_slot_of_expert.size());
}

void gather_rows_of_routes(const at::Tensor& out_RH, const at::Tensor& x_NH, const at::Tensor& route_of_slot,
                           int64_t k) {
  const char* place = "gather_rows_of_routes";
  const ByteRows rows = byte_rows(out_RH, x_NH, place);
  const int64_t num_rows = out_RH.size(0);
  check_index(route_of_slot, num_rows, out_RH, place, "route_of_slot");
  STEPPE_CHECK_VALUE(k >= 1, "[{}] k must be at least 1, got {}", place, k);
  if (out_RH.is_meta() || num_rows == 0) return;
  const int32_t* index = route_of_slot.const_data_ptr<int32_t>();
  if (out_RH.is_cuda()) return cuda::gather_rows(rows, index, num_rows, k, current_cuda_stream(out_RH));
  cpu::gather_rows(rows, index, num_rows, k);
}

void gather_values(const at::Tensor& out, const at::Tensor& values, const at::Tensor& index) {
  const char* place = "gather_values";
  check_device(values, out, place, "values");
  check_dtype(values, out.scalar_type(), place, "values");
  STEPPE_CHECK_VALUE(out.dim() == 1 && values.dim() == 1,
                     "[{}] out and values must both have 1 dim, got {} and {}", place, out.dim(),
                     values.dim());
  check_index(index, out.numel(), out, place, "index");
  const int64_t bytes = out.element_size();
  STEPPE_CHECK_VALUE(bytes == 2 || bytes == 4 || bytes == 8,
                     "[{}] elements must have 2, 4 or 8 bytes, got {}", place, bytes);
  if (out.is_meta() || out.numel() == 0) return;
  const GatherValues args{.out = out.mutable_data_ptr(),
                          .values = values.const_data_ptr(),
                          .index = index.const_data_ptr<int32_t>(),
                          .n = out.numel(),
                          .element_bytes = bytes,
                          .out_stride = out.stride(0),
                          .values_stride = values.stride(0)};
  if (out.is_cuda()) return cuda::gather_values(args, current_cuda_stream(out));
  cpu::gather_values(args);
}

void combine_rows(const at::Tensor& y_NH, const at::Tensor& rows_RH, const at::Tensor& slot_of_route,
                  int64_t k, bool add) {
  const char* place = "combine_rows";
  check_device(rows_RH, y_NH, place, "rows");
  CombineRows args{.y_element = element_of(y_NH, place, "y"),
                   .rows_element = element_of(rows_RH, place, "rows"),
                   .y_stride = row_stride(y_NH, place, "y"),
                   .rows_stride = row_stride(rows_RH, place, "rows"),
                   .tokens = y_NH.size(0),
                   .width = y_NH.size(1),
                   .k = k,
                   .add = add};
  STEPPE_CHECK_VALUE(args.y_element == Element::kFloat32 || args.rows_element == Element::kBfloat16,
                     "[{}] y must be fp32 where rows are, got bf16", place);
  STEPPE_CHECK_VALUE(rows_RH.size(1) == args.width, "[{}] rows must have y's {} columns, got {}", place,
                     args.width, rows_RH.size(1));
  STEPPE_CHECK_VALUE(k >= 1, "[{}] k must be at least 1, got {}", place, k);
  check_index(slot_of_route, args.tokens * k, y_NH, place, "slot_of_route");
  if (y_NH.is_meta() || y_NH.numel() == 0) return;
  args.y = y_NH.mutable_data_ptr();
  args.rows = rows_RH.const_data_ptr();
  args.slot_of_route = slot_of_route.const_data_ptr<int32_t>();
  if (y_NH.is_cuda()) return cuda::combine_rows(args, current_cuda_stream(y_NH));
  cpu::combine_rows(args);
}

void copy_row_blocks(const at::Tensor& out, const at::Tensor& in, std::span<const RowBlock> blocks) {
  const char* place = "copy_row_blocks";
  const ByteRows rows = byte_rows(out, in, place);
  for (size_t b = 0; b < blocks.size(); ++b) {
    const RowBlock& block = blocks[b];
    STEPPE_CHECK_VALUE(block.rows >= 0 && block.to >= 0 && block.from >= 0 &&
                           block.to + block.rows <= out.size(0) && block.from + block.rows <= in.size(0),
                       "[{}] block {} moves {} rows from {} of {} to {} of {}", place, b, block.rows,
                       block.from, in.size(0), block.to, out.size(0));
  }
  if (out.is_meta() || rows.row == 0) return;
  if (out.is_cuda()) return cuda::copy_row_blocks(rows, blocks, current_cuda_stream(out));
  cpu::copy_row_blocks(rows, blocks);
}

}  // namespace steppe::kernels
