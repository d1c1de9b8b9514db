#include "steppe/train/device_batch.h"

#include <algorithm>

#include "steppe/base/error.h"
#include "steppe/kernels/rotary.h"
#include "steppe/memory/scope.h"
#include "steppe/ops/host_copy.h"

namespace steppe::train {
namespace {

using layout::Axis;

layout::Interval shard_of_row(const layout::RankLayout& layout, const data::Microbatch& micro_batch) {
  return layout::even_part(micro_batch.num_tokens(), layout.degree(Axis::kSequence),
                           layout.index_in_group(Axis::kSequence));
}

template <class T>
std::span<const T> part(const std::vector<T>& values, layout::Interval interval) {
  return std::span<const T>(values).subspan(interval.begin, interval.size());
}

void check_tokens(std::span<const int32_t> tokens, int64_t vocab_size) {
  for (const int32_t token : tokens) {
    STEPPE_CHECK_VALUE(token >= 0 && token < vocab_size,
                       "[batch] token id {} is outside the model's vocabulary of {} (model.vocab_size)",
                       token, vocab_size);
  }
}

}  // namespace

BatchSizes agree_on_sizes(const layout::RankLayout& layout, comm::Groups& groups, int64_t vocab_size,
                          std::span<const data::Microbatch> micro_batches) {
  const int64_t degree = layout.degree(Axis::kVocab), fields = 3 + degree;
  const bool counts_targets = layout.index_in_group(Axis::kSequence) == 0;
  std::vector<int64_t> mine;
  for (const auto& micro_batch : micro_batches) {
    const auto shard = shard_of_row(layout, micro_batch);
    const auto tokens = part(micro_batch.tokens, shard), targets = part(micro_batch.targets, shard);
    check_tokens(tokens, vocab_size);
    mine.push_back(static_cast<int64_t>(tokens.size()));
    mine.push_back(counts_targets ? micro_batch.num_targets : 0);
    mine.push_back(std::count_if(targets.begin(), targets.end(), [](int32_t target) { return target >= 0; }));
    const auto owners = ops::tokens_by_owner(tokens, vocab_size, degree);
    mine.insert(mine.end(), owners.begin(), owners.end());
  }
  const auto all = groups.control->all_gather_host(mine);
  BatchSizes sizes;
  for (size_t m = 0; m < micro_batches.size(); ++m) {
    MicrobatchSizes of;
    for (int64_t rank = 0; rank < layout.world_size(); ++rank) {
      const auto* entry =
          all.data() + rank * static_cast<int64_t>(mine.size()) + static_cast<int64_t>(m) * fields;
      of.tokens_of_rank.push_back(entry[0]);
      sizes.num_tokens += entry[0];
      sizes.num_targets += entry[1];
      of.targets_of_rank.push_back(entry[2]);
      of.by_owner.emplace_back(entry + 3, entry + fields);
    }
    sizes.micro_batches.push_back(std::move(of));
  }
  return sizes;
}

DeviceBatch upload_batch(const ops::OpContext& context, const layout::RankLayout& layout,
                         comm::Groups& groups, const model::ModelConfig& config,
                         const model::RotaryFrequencies& frequencies, const data::Microbatch& micro_batch,
                         const MicrobatchSizes& sizes, int64_t num_targets) {
  const memory::Scope scope(memory::Category::kBatch);
  const auto shard = shard_of_row(layout, micro_batch);
  const auto tokens = part(micro_batch.tokens, shard);
  DeviceBatch batch;
  const auto ids = part(micro_batch.token_ids, shard);
  batch.row.token_ids.assign(ids.begin(), ids.end());
  batch.row.document_bounds = micro_batch.document_bounds;
  for (const int rank : layout.group(Axis::kSequence))
    batch.row.tokens_of_rank.push_back(sizes.tokens_of_rank[rank]);
  for (const int rank : layout.group(Axis::kExpert))
    batch.row.largest_num_tokens = std::max(batch.row.largest_num_tokens, sizes.tokens_of_rank[rank]);

  const auto half = static_cast<int64_t>(frequencies.inverse.size()), n = shard.size();
  batch.row.cos_nh = context.empty({n, half}, at::kFloat);
  batch.row.sin_nh = context.empty({n, half}, at::kFloat);
  {
    const auto positions = ops::upload(context, part(micro_batch.positions, shard));
    kernels::rotary_tables(batch.row.cos_nh, batch.row.sin_nh, positions, frequencies.inverse,
                           frequencies.attention_factor);
  }
  const auto targets = part(micro_batch.targets, shard);
  batch.targets_n = ops::upload(context, targets);
  batch.host_targets.assign(targets.begin(), targets.end());
  const std::vector<float> weights(
      n, num_targets > 0 ? static_cast<float>(1.0 / static_cast<double>(num_targets)) : 0.0F);
  batch.row_weight_n = ops::upload(context, weights);

  std::vector<int64_t> receive_rows;
  for (const int rank : layout.group(Axis::kVocab)) {
    batch.rows_of_vocab_rank.push_back(sizes.tokens_of_rank[rank]);
    batch.targets_of_vocab_rank.push_back(sizes.targets_of_rank[rank]);
    receive_rows.push_back(sizes.by_owner[rank][layout.index_in_group(Axis::kVocab)]);
  }
  batch.embedding = ops::exchange_ids(context, *groups.vocab, config.vocab_size, tokens, receive_rows);
  return batch;
}

}  // namespace steppe::train
