#include "steppe/ops/vocab_loss/vocab_loss_pair.h"

#include "steppe/kernels/pointwise.h"
#include "steppe/memory/scope.h"

namespace steppe::ops {

VocabLossSaved vocab_loss_forward(const VocabLossOptions& options, const OpContext& context,
                                  comm::Communicator& group, const VocabLossInput& input,
                                  const at::Tensor& loss_1, const at::Tensor& row_loss_N) {
  VocabLossSaved saved;
  {
    const memory::Scope scope(memory::Category::kSaved);
    saved = {context.empty(input.x_NH.sizes()), context.empty(input.weight_vH.sizes(), at::kFloat)};
  }
  kernels::fill_zero(saved.grad_weight_vH);
  vocab_loss(options, context, group, input, {loss_1, row_loss_N, saved.dx_NH, saved.grad_weight_vH});
  return saved;
}

void vocab_loss_backward(const VocabLossSaved& saved, double upstream) {
  kernels::scale(saved.dx_NH, upstream);
  kernels::scale(saved.grad_weight_vH, upstream);
}

}  // namespace steppe::ops
