// Embedding lookup over vocabulary intervals: each rank of the vocabulary group owns the rows [first_row,
// first_row + v) of the table; a token's id goes to the owner of its row, and the row comes back. The
// backward sends the gradient rows to the owners, who add them in fp32, by source rank and then token order.
//
// Shapes: N tokens on this rank, R ids received; out, dy [N, H]; table [v, H]; its gradient fp32 [v, H].
// Collective over the vocabulary group, once each for exchange_ids, forward and backward. No host sync: the
// ids are host data to begin with. Allocates: exchange_ids keeps 4·(2N + R) bytes in category `batch` (P = 1:
// 4·N); forward and backward R·H and N·H values in category `vocab` beside the result (P = 1: none). Wire: 4
// bytes a token once, H values a token each way.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "steppe/comm/communicator.h"
#include "steppe/layout/layout.h"
#include "steppe/ops/context.h"

namespace steppe::ops {

// Tokens of this rank by owning rank, P entries: what the ranks tell each other before the step.
std::vector<int64_t> tokens_by_owner(std::span<const int32_t> tokens, int64_t vocab_size, int64_t degree);

struct EmbeddingRoute {
  std::vector<int64_t> send_rows, receive_rows;  // P entries
  at::Tensor ids_received_R;                     // int32; with P = 1 the tokens in their own order
  at::Tensor token_of_slot_N, slot_of_token_N;   // int32; undefined with P = 1
};

// receive_rows[p]: how many tokens of rank p this rank owns (its tokens_by_owner at this rank's index).
EmbeddingRoute exchange_ids(const OpContext& context, comm::Communicator& vocab_group, int64_t vocab_size,
                            std::span<const int32_t> tokens, std::span<const int64_t> receive_rows);

void embedding_forward(const OpContext& context, comm::Communicator& vocab_group, const at::Tensor& out_NH,
                       const at::Tensor& table_vH, int64_t first_row, const EmbeddingRoute& route);

void embedding_backward(const OpContext& context, comm::Communicator& vocab_group,
                        const at::Tensor& grad_table_vH, const at::Tensor& dy_NH, int64_t first_row,
                        const EmbeddingRoute& route);

}  // namespace steppe::ops
