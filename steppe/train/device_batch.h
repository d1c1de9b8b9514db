// From a micro-batch on the host to what this rank computes with: its shard of the token row, the sizes of
// everyone else's, and the tensors on the device. All sizes come from one host exchange per step.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "steppe/comm/groups.h"
#include "steppe/data/batch_plan.h"
#include "steppe/layout/layout.h"
#include "steppe/model/config.h"
#include "steppe/model/decoder_layer.h"
#include "steppe/ops/embedding/vocab_embedding.h"

namespace steppe::train {

// What all ranks know of one micro-batch of a step.
struct MicrobatchSizes {
  std::vector<int64_t> tokens_of_rank;         // W: each rank's shard of its group's row
  std::vector<int64_t> targets_of_rank;        // W: how many of those tokens have a target
  std::vector<std::vector<int64_t>> by_owner;  // W × P: those tokens by the owner of their embedding row
};

struct BatchSizes {
  std::vector<MicrobatchSizes> micro_batches;
  int64_t num_targets = 0;  // over all groups and micro-batches
  int64_t num_tokens = 0;
};

// One host exchange over all ranks. Every rank of a sequence group holds the same micro-batches; all groups
// have the same number of them. Throws ValueError, on every rank, for a token id outside the vocabulary.
BatchSizes agree_on_sizes(const layout::RankLayout& layout, comm::Groups& groups, int64_t vocab_size,
                          std::span<const data::Microbatch> micro_batches);

struct DeviceBatch {
  model::TokenRow row;
  at::Tensor targets_n;     // int32, negative where ignored
  at::Tensor row_weight_n;  // fp32, 1 / num_targets
  ops::EmbeddingRoute embedding;
  std::vector<int32_t> host_targets;           // targets_n again
  std::vector<int64_t> rows_of_vocab_rank;     // P
  std::vector<int64_t> targets_of_vocab_rank;  // P

  int64_t num_tokens() const { return static_cast<int64_t>(row.token_ids.size()); }
};

// Collective over the vocabulary group. Category `batch`.
DeviceBatch upload_batch(const ops::OpContext& context, const layout::RankLayout& layout,
                         comm::Groups& groups, const model::ModelConfig& config,
                         const model::RotaryFrequencies& frequencies, const data::Microbatch& micro_batch,
                         const MicrobatchSizes& sizes, int64_t num_targets);

}  // namespace steppe::train
