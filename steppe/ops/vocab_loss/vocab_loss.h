// Output projection and cross entropy over vocabulary intervals, loss and gradients at once. This header is
// the contract of all kinds; every kind gives the same loss and gradients, and differs in bytes and time.
//
//   loss = Σ_rows (log Σ_v e^{y_v} − y_target),  y = x·Wᵀ;   dx, dW of weight_row · loss_row
//   if asked for: y = cap·tanh(x·Wᵀ/cap), and c·(log Σ_v e^{y_v})² more per row (kernels::LossShape)
//
// Rank r of the vocabulary group has its own rows x [N_r, H] and owns the columns [first_column,
// first_column + v) of the vocabulary, W [v, H]; columns are cut by layout::even_part.
//   full            gathers W, forms [N, V] logits
//   vocab_parallel  gathers the group's rows, forms [Σ N_r, v] logits, and reduces maximum, sum and target
//                   logit (Megatron-LM, Shoeybi et al. 2019)
//   ring            P rounds; in each a rank has one batch and one shard, because the batches go round or
//                   because the shards do; running softmax statistics (Milakov and Gimelshein 2018); strips
//                   are recomputed in backward
//   tiled           one pass over tiles of n rows per rank: gathered, projected, turned into the gradient in
//                   place after one all-gather of statistics; nothing is recomputed
//   auto            tiled, or the ring of weights where tiled's wire would cost more than a product
//                   (resolve_kind)
//
// Rows whose target is negative carry no loss and no gradient. Ranks may have any N, 0 included.
// Collective over the vocabulary group, one call per micro-batch, same order everywhere. Host syncs: none.
// Keeps nothing. Deterministic: sums over ranks in fp32, in a fixed order. docs/vocab_loss.md has the
// schedules and the bytes on the wire.
//
// Allocates in category `vocab`, b bytes a value, R = Σ N_r, M = max N_r:
//   vocab_parallel  R·(v + H·[P>1])·b, 20·R of statistics; with P > 1 the partial dx R·H·b and the received
//                   N·P·H·b
//   full            N·V·b; with P > 1 also the gathered weight V·H·b and its fp32 gradient 4·V·H, twice in
//                   its sum
//   ring            a strip of S rows, S·(v·b + 24); 12·N of statistics; what travels, once (P = 2) or twice
//                   (P > 2): activations M·(H·b + 20), or weights v·H·(b + 4); in bf16 S·H·b. Weights: S =
//                   min(n, N); in bf16 an fp32 dx, 4·N·H. Activations: S = ⌈M/T⌉ of T = ⌈M/n⌉ even tiles; the
//                   fp32 dx travels in them, once whatever P, and one tile on the way: (T + 1)·S·4·H (P = 1:
//                   none on the way, and nothing in fp32)
//   tiled           R' = Σ min(n, N_r) rows, R'·(v·b + 12). P > 1: 12·R'·P more, up to two gathered tiles of
//                   R'·(H·b + 8), R'·H·b of partial dx, (P − 1)·min(n, N)·H·b received of it, and in bf16 its
//                   fp32 sum. Where ignored rows are left out, P = 1 gathers too, and the tile's dx takes
//                   min(n, N)·H·b (P > 1 in fp32: the sum). Nothing grows with N once N exceeds n
// dW is accumulated in `grad_weight_vH`; with bf16 operands every product of it passes through one bf16 [v,
// H] in category `grads`.
#pragma once

#include <cstdint>
#include <span>

#include "steppe/comm/communicator.h"
#include "steppe/kernels/softmax_rows.h"
#include "steppe/ops/context.h"

namespace steppe::ops {

enum class VocabLossKind { kAuto, kTiled, kRing, kVocabParallel, kFull };
enum class Circulate { kAuto, kActivations, kWeights };  // auto: the smaller payload

struct VocabLossOptions {
  // A kind alone is options too.
  VocabLossOptions(VocabLossKind kind = VocabLossKind::kAuto)
      : kind(kind) {}  // NOLINT(google-explicit-constructor)

  VocabLossKind kind;
  int64_t tile_tokens = 0;  // rows of a rank in a tile of `tiled`, of a strip in `ring`; 0: derived
  Circulate circulate = Circulate::kAuto;  // of `ring`
  // Soft-capping and z-loss. A z-loss is a matter of training: in evaluation it is left out.
  kernels::LossShape loss_shape;
};

// What a choice depends on, known to the host and the same on every rank of the group.
struct VocabLossShape {
  int64_t hidden = 0, vocab_size = 0, degree = 1;
  int64_t max_rows = 0;  // the largest N of the group
  int64_t itemsize = 4;  // of activations and weights
};

// The kind and direction that run: never kAuto.
VocabLossOptions resolve_kind(const VocabLossOptions& options, const VocabLossShape& shape);

// The tile that runs, given a resolved kind. Derived: the largest whose buffers stay under half the fp32
// gradient of the shard (which every tile's product reads and writes anyway) or under 32 MiB, whichever is
// more. Does not depend on max_rows.
int64_t resolve_tile_tokens(const VocabLossOptions& options, const VocabLossShape& shape);

struct VocabLossInput {
  at::Tensor x_NH;
  at::Tensor targets_N;  // int32, negative: ignored
  at::Tensor
      row_weight_N;  // fp32: what a row's loss is multiplied by for the gradients (1 / global target count)
  at::Tensor weight_vH;
  int64_t vocab_size = 0, first_column = 0;
  std::span<const int64_t> rows_of_rank;  // P entries, host
  // With both of these, `tiled` leaves ignored rows out of every exchange and product. Host.
  std::span<const int32_t> host_targets;     // N entries: targets_N again
  std::span<const int64_t> targets_of_rank;  // P entries: rows with a target
};

struct VocabLossOutput {
  at::Tensor loss_1;          // fp64 [1], accumulated: the unweighted sum over this rank's own rows
  at::Tensor row_loss_N;      // fp32, written, or undefined
  at::Tensor dx_NH;           // written; undefined: evaluation, no gradient work is done
  at::Tensor grad_weight_vH;  // fp32, accumulated; undefined in evaluation
};

// Throws ValueError, before anything is sent, for tensors that do not fit one another or the group.
void vocab_loss(const VocabLossOptions& options, const OpContext& context, comm::Communicator& vocab_group,
                const VocabLossInput& input, const VocabLossOutput& output);

}  // namespace steppe::ops
