// The load-balancing loss needs to know how many tokens each expert got over all ranks. It is known once a
// micro-batch's forward is done, which is when its gradient is first needed.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>

#include "steppe/comm/groups.h"
#include "steppe/model/decoder_layer.h"
#include "steppe/ops/context.h"

namespace steppe::train {

// dscores [layer, expert] fp32 of ops::RouterLosses, in category `routing`: coeff·E·f_e/T, with f over the
// micro-batch's routes of all ranks and T = `num_tokens` of the whole step; rows of dense layers are zero.
// `layers`: with their routing pinned. Collective over ranks that hold the same experts: one host exchange of
// L·E counts.
at::Tensor balance_score_gradient(const ops::OpContext& context, comm::Groups& groups,
                                  std::span<const model::LayerState> layers, int64_t num_experts,
                                  double coeff, int64_t num_tokens);

}  // namespace steppe::train
