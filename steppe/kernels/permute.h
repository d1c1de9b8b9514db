// Moving rows between token order and route order. Fill given tensors, return at once on `meta`, allocate
// nothing on the device. A route is (token t, listing j), numbered t·k + j. Fixed order everywhere: the same
// bits on every run. Matrices may have a stride between rows; ids and indices are contiguous. Rows are moved
// as bytes, any dtype.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

#include "steppe/kernels/row_block.h"

namespace steppe::kernels {

// Stable counting sort of routes by expert: slot_of_route [N·k] int32 is where route r goes, route_of_slot
// [N·k] its inverse. `first_slot_of_expert` (host, E entries) are the exclusive sums of the counts. On the
// CPU a ValueError names the first route whose id or slot is out of range; on CUDA the caller answers for
// that.
void sort_routes(const at::Tensor& slot_of_route, const at::Tensor& route_of_slot, const at::Tensor& ids_Nk,
                 std::span<const int64_t> first_slot_of_expert);

// out [R, H] row s = x [N, H] row route_of_slot[s] / k.
void gather_rows_of_routes(const at::Tensor& out_RH, const at::Tensor& x_NH, const at::Tensor& route_of_slot,
                           int64_t k);

// out[i] = values[index[i]]: to slots with route_of_slot, and back to routes with slot_of_route. Elements of
// 2, 4 or 8 bytes; out and values may have a stride: a column of packed rows.
void gather_values(const at::Tensor& out, const at::Tensor& values, const at::Tensor& index);

// y [N, H] row t = (add ? y : 0) + Σ_j rows[slot_of_route[t·k + j]], j ascending, summed in fp32 and rounded
// once. y and rows fp32 or bf16; y may be fp32 where rows are bf16.
void combine_rows(const at::Tensor& y_NH, const at::Tensor& rows_RH, const at::Tensor& slot_of_route,
                  int64_t k, bool add);

// Rows of `in` in blocks (RowBlock: to, from, rows), moved to other places: out rows [to, to + rows) = in
// rows [from, from + rows). Vectors have rows of one element. Blocks must not overlap in `out`, nor `out`
// with `in`. For regrouping received rows from (source, expert) to (expert, source) order.
void copy_row_blocks(const at::Tensor& out, const at::Tensor& in, std::span<const RowBlock> blocks);

}  // namespace steppe::kernels
