// Output projection and cross entropy over vocabulary intervals, loss and gradients at once. This header is the
// contract of all kinds; every kind gives the same loss and gradients, and differs in bytes and time.
//
//   loss = Σ_rows (log Σ_v e^{y_v} − y_target),  y = x·Wᵀ;   dx, dW of weight_row · loss_row
//
// Rank r of the vocabulary group has its own rows x [N_r, H] and owns the columns [first_column, first_column + v)
// of the vocabulary, W [v, H].
//   full            gathers W, forms [N, V] logits
//   vocab_parallel  gathers the group's rows, forms [Σ N_r, v] logits, and reduces maximum, sum and target logit
//                   (Megatron-LM, Shoeybi et al. 2019)
// Rows whose target is negative carry no loss and no gradient. Ranks may have any N, 0 included.
// Collective over the vocabulary group, one call per micro-batch, same order everywhere. Host syncs: none.
// Allocates in category `vocab`, b bytes a value: vocab_parallel ΣN·(v + H·[P>1])·b logits and gathered rows, 20·ΣN
// bytes of statistics, with P > 1 also the partial dx of ΣN·H values and the received parts N·P·H. full: N·V·b
// logits, with P > 1 also the gathered weight V·H·b and its fp32 gradient 4·V·H, twice while it is summed.
// Keeps nothing. Deterministic: sums over ranks in fp32, in rank order.
#pragma once

#include <cstdint>
#include <span>

#include "steppe/comm/communicator.h"
#include "steppe/ops/context.h"

namespace steppe::ops {

enum class VocabLossKind { kVocabParallel, kFull };

struct VocabLossInput {
  at::Tensor x_NH;
  at::Tensor targets_N;      // int32, negative: ignored
  at::Tensor row_weight_N;   // fp32: what a row's loss is multiplied by for the gradients (1 / global target count)
  at::Tensor weight_vH;
  int64_t vocab_size = 0, first_column = 0;
  std::span<const int64_t> rows_of_rank;  // P entries, host
};

struct VocabLossOutput {
  at::Tensor loss_1;          // fp64 [1], accumulated: the unweighted sum over this rank's own rows
  at::Tensor row_loss_N;      // fp32, written, or undefined
  at::Tensor dx_NH;           // written; undefined: evaluation, no gradient work is done
  at::Tensor grad_weight_vH;  // fp32, accumulated; undefined in evaluation
};

void vocab_loss(VocabLossKind kind, const OpContext& context, comm::Communicator& vocab_group,
                const VocabLossInput& input, const VocabLossOutput& output);

}  // namespace steppe::ops
