// The kinds behind vocab_loss.h. Arguments are checked; the caller is in the scope of category `vocab`.
#pragma once

#include "steppe/ops/vocab_loss/vocab_loss.h"

namespace steppe::ops {

struct VocabLossCall {
  const OpContext& context;
  comm::Communicator& group;
  const VocabLossInput& in;
  const VocabLossOutput& out;
  kernels::LossShape loss_shape;

  int64_t hidden() const { return in.x_NH.size(1); }
  bool wants_gradient() const { return out.dx_NH.defined(); }

  // strip = the logits of x over the columns of a weight.
  void project(const at::Tensor& strip, const at::Tensor& x, const at::Tensor& weight) const;
  // Of rows of this rank, final statistics given.
  void add_loss(const at::Tensor& row_loss, const at::Tensor& stats, const at::Tensor& targets) const;
  // In place: the strip becomes the gradient of the product.
  void to_gradient(const at::Tensor& strip, const at::Tensor& stats, const at::Tensor& targets,
                   const at::Tensor& row_weight, int64_t first_column) const;
};

void full_loss(const VocabLossCall& call);
void vocab_parallel_loss(const VocabLossCall& call);
void tiled_loss(const VocabLossCall& call, int64_t tile_tokens);
void ring_loss(const VocabLossCall& call, int64_t tile_tokens, Circulate circulate);

}  // namespace steppe::ops
