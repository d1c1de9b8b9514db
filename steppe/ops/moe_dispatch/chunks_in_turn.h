// pipelined_llep on a group of one: nothing travels, so there is nothing to overlap, and the chunks take
// turns in one buffer, where rows lie in expert order as they come. The same work as `ep`, in less room.
//
// Allocates once per pass, with c tokens in the largest chunk: in `dispatch` k·c rows of H values (backward
// two of them) and 20·k·c bytes (backward 24); in `expert` one tile of min(T, k·c) rows of 3I values, T as
// in pipelined.h. With `saved` gate and up of all rows are kept, and a tile has I values a row.
#pragma once

#include "steppe/ops/moe_dispatch/moe_dispatch.h"

namespace steppe::ops {

void in_turn_forward(const DispatchLayer& layer, const DispatchPlan& plan, const at::Tensor& y_NH,
                     const at::Tensor& x_NH, DispatchSaved* saved);
void in_turn_backward(const DispatchLayer& layer, const DispatchPlan& plan, const DispatchGradients& grads,
                      const at::Tensor& dy_NH, const at::Tensor& x_NH, DispatchSaved* saved);

}  // namespace steppe::ops
