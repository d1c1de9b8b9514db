// The kinds behind vocab_loss.h. Arguments are checked; the caller is in the scope of category `vocab`.
#pragma once

#include "steppe/ops/vocab_loss/vocab_loss.h"

namespace steppe::ops {

struct VocabLossCall {
  const OpContext& context;
  comm::Communicator& group;
  const VocabLossInput& in;
  const VocabLossOutput& out;

  int64_t hidden() const { return in.x_NH.size(1); }
  bool wants_gradient() const { return out.dx_NH.defined(); }
};

void full_loss(const VocabLossCall& call);
void vocab_parallel_loss(const VocabLossCall& call);
void tiled_loss(const VocabLossCall& call, int64_t tile_tokens);
void ring_loss(const VocabLossCall& call, int64_t tile_tokens, Circulate circulate);

}  // namespace steppe::ops
