// Moving rows between token order and route order. Fill given tensors, return at once on `meta`, allocate nothing.
// A route is (token t, listing j), numbered t·k + j. Fixed order everywhere: the same bits on every run.
#pragma once

#include <cstdint>
#include <span>

#include <ATen/core/Tensor.h>

namespace steppe::kernels {

// Stable counting sort of routes by expert: slot_of_route [N·k] int32 is where route r goes, route_of_slot [N·k]
// its inverse. `first_slot_of_expert` (host, E entries) are the exclusive sums of the counts.
void sort_routes(const at::Tensor& slot_of_route, const at::Tensor& route_of_slot, const at::Tensor& ids_Nk,
                 std::span<const int64_t> first_slot_of_expert);

// out [R, H] row s = x [N, H] row route_of_slot[s] / k.
void gather_rows_of_routes(const at::Tensor& out_RH, const at::Tensor& x_NH, const at::Tensor& route_of_slot,
                           int64_t k);

// out [R] = values [N·k] at route_of_slot; and the way back: values[r] = out[slot_of_route[r]].
void gather_values(const at::Tensor& out, const at::Tensor& values, const at::Tensor& index);

// y [N, H] row t = (add ? y : 0) + Σ_j rows[slot_of_route[t·k + j]], j ascending, summed in fp32.
void combine_rows(const at::Tensor& y_NH, const at::Tensor& rows_RH, const at::Tensor& slot_of_route, int64_t k,
                  bool add);

// Rows of `in` in blocks, moved to other places: out[to_begin[b] …] = in[from_begin[b] …], sizes[b] rows each.
// For regrouping received rows from (source, expert) to (expert, source) order.
struct RowBlock {
  int64_t to = 0, from = 0, rows = 0;
};
void copy_row_blocks(const at::Tensor& out, const at::Tensor& in, std::span<const RowBlock> blocks);

}  // namespace steppe::kernels
