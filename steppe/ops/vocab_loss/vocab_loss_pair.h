// vocab_loss in two halves, for a caller who learns the gradient of the loss itself only later: an autograd
// function. The first half does all the work, since a gradient is linear in what comes from above; the second
// scales it. So no kind needs its logits, or its statistics, between the two.
#pragma once

#include "steppe/ops/vocab_loss/vocab_loss.h"

namespace steppe::ops {

// Gradients of Σ row_weight · row_loss over the group, kept between the halves in category `saved`: N·H·b and
// 4·v·H.
struct VocabLossSaved {
  at::Tensor dx_NH;
  at::Tensor grad_weight_vH;  // fp32
};

// As vocab_loss: loss_1 accumulated, row_loss_N written or undefined. Collective over the group.
VocabLossSaved vocab_loss_forward(const VocabLossOptions& options, const OpContext& context,
                                  comm::Communicator& vocab_group, const VocabLossInput& input,
                                  const at::Tensor& loss_1, const at::Tensor& row_loss_N);

// In place, once: `saved` becomes the gradients where d(result)/d(Σ row_weight · row_loss) is `upstream`,
// which must be the same on all ranks of the group, dW being of all their rows. Local; nothing is allocated.
void vocab_loss_backward(const VocabLossSaved& saved, double upstream);

}  // namespace steppe::ops
