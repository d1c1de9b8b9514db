// Ulysses attention: every rank of a sequence group holds a shard of the tokens and all heads; an all-to-all
// trades that for all tokens and a shard of the heads, attention runs exactly (causal, confined to
// documents), and a second all-to-all brings the outputs home.
//
// Shapes: q [n, hq, d], k and v [n, hk, d] on a rank with n of the row's S tokens (shards may differ by one,
// none is ordinary). After the exchange: hq/D query heads and max(1, hk/D) key-value heads of all S tokens.
// With hk < D each key-value head is replicated on D/hk ranks, and their gradients are summed in rank order.
// Collective over the sequence group, in the same order on all its ranks. No host sync.
// Allocates in category `attention`: forward a send and a receive buffer of n·(hq + 2·D·hk')·d and
// S·(hq/D + 2·hk')·d values where D > 1 (hk' = key-value heads a rank gets), the kernel's outputs and
// scratch, and n·hq·d values as they came home, beside the result; the same in backward for the gradients.
// With D = 1 nothing but the kernel's own. Wire per rank: out ((D−1)·n·(hq/D + 2·hk') + (S−n)·hq/D)·d values
// forward, ((D−1)·n·hq/D + (S−n)·(hq/D + 2·hk'))·d backward. As deterministic as its kernel. Source:
// DeepSpeed-Ulysses, Jacobs et al. 2023.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "steppe/comm/communicator.h"
#include "steppe/kernels/attention.h"
#include "steppe/ops/context.h"

namespace steppe::ops {

struct UlyssesShape {
  int64_t num_heads = 0, num_kv_heads = 0, head_dim = 0;
  double scale = 0;
  std::vector<int64_t> tokens_of_rank;       // D entries: the shards of the row, in order
  std::span<const int64_t> document_bounds;  // of the whole row: cumulative, 0 … S
  bool deterministic = true;                 // kernels::attention_backward's
};

// What the backward reads; `q, k, v` are views of the callers' tensors when D = 1.
struct UlyssesSaved {
  at::Tensor q_Shd, k_Shd, v_Shd;
  kernels::AttentionOutput output;
  bool output_outlives_layer = false;  // its category is `saved`
};

// Returns the outputs of this rank's tokens [n, hq·d]. Where `saved` has an output already, of the same
// inputs, that one is used: the rest happens, attention itself does not run.
at::Tensor ulysses_attention_forward(const OpContext& context, comm::Communicator& sequence_group,
                                     const UlyssesShape& shape, const at::Tensor& q_nhd,
                                     const at::Tensor& k_nhd, const at::Tensor& v_nhd, UlyssesSaved& saved);

struct UlyssesGradients {
  at::Tensor dq_nhd, dk_nhd, dv_nhd;  // contiguous
};

// Consumes `saved`: its tensors are released as soon as they have been read.
UlyssesGradients ulysses_attention_backward(const OpContext& context, comm::Communicator& sequence_group,
                                            const UlyssesShape& shape, const at::Tensor& dout_nh,
                                            UlyssesSaved& saved);

}  // namespace steppe::ops
