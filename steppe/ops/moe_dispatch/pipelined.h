// Dispatch in chunks through two slots. While the experts work on chunk i in one slot, the results of chunk
// i−1 leave the other, then chunk i+1 arrives in it: one totally ordered queue of transfers, and no host
// synchronization but the waits for buffers. Contract: moe_dispatch.h.
//
// Forward, in the first half of a chunk's tiles the results of i−1 come home, in the second i+1 arrives.
// Backward, in thirds: dx of i−1 comes home, x of i+1 arrives, dy of i+1 arrives. dy's slot, which i−1 is
// done with, is the source buffer of dx and of x; dy itself comes in two halves, some columns, then the
// others, through a source buffer of half its rows' size.
//
// Allocates once per pass and reuses for every chunk, with c tokens in this rank's largest chunk, c_eff in
// the group's, b bytes a value:
//   dispatch  slots of max(33, ⌈R/g⌉) granules of g = ⌈k·c_eff/32⌉ rows for the rank's largest R, at most
//             E_p·k·c_eff rows (chunk_sizes.h): 2 of x, backward 2 of dy, each of which has at least room for
//             k·c rows of x. Source buffers: forward 2 of k·c rows, backward one of k·c rows of half the
//             columns (of dy: ⌈H/2⌉, up to whole 16 bytes). A row of x carries its routing weight
//             (packed_rows.h: 16 bytes more where H·b is a multiple of 16), one of dy does not. Order, ids
//             and weights of the chunks at hand, 44·k·c bytes
//   expert    one tile of T = max(⌈k·c_eff/32⌉, min(1024, ⌈k·c_eff/8⌉)) rows, or tile_rows: H + 3I values a
//             row forward, 2H + 3I backward, and one fp32 weight, backward two
// (A group of one: chunks_in_turn.h.) None of it depends on the routing while no chunk brings the rank more
// than 33 granules. Keeps nothing between the passes, unless `saved` is given: then gate and up of all rows,
// in `saved`, which a tile has no room for then; x is dispatched again even so.
#pragma once

#include "steppe/ops/moe_dispatch/moe_dispatch.h"

namespace steppe::ops {

void pipelined_forward(const DispatchLayer& layer, const DispatchPlan& plan, const at::Tensor& y_NH,
                       const at::Tensor& x_NH, DispatchSaved* saved);
void pipelined_backward(const DispatchLayer& layer, const DispatchPlan& plan, const DispatchGradients& grads,
                        const at::Tensor& dy_NH, const at::Tensor& x_NH, DispatchSaved* saved);

}  // namespace steppe::ops
