#include "steppe/plan/supposed_batch.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "steppe/train/configure.h"

namespace steppe::plan {
namespace {

data::Sequence supposed_sequence(int64_t length, int64_t vocab_size, int64_t owners) {
  data::Sequence sequence;
  sequence.document_starts = {0};
  sequence.positions.resize(length);
  std::iota(sequence.positions.begin(), sequence.positions.end(), 0);
  sequence.tokens.resize(length);
  for (int64_t i = 0; i < length; ++i) {
    const auto rows = layout::even_part(vocab_size, owners, i % owners);
    const int64_t row = rows.size() > 0 ? rows.begin + i / owners % rows.size() : i % vocab_size;
    sequence.tokens[i] = static_cast<int32_t>(row);
  }
  sequence.targets = sequence.tokens;
  return sequence;
}

// The last token of every rank's shard of the row has no target.
void drop_targets(data::Microbatch& micro_batch, int64_t degree) {
  for (int64_t part = 0; part < degree; ++part) {
    const auto shard = layout::even_part(micro_batch.num_tokens(), degree, part);
    if (shard.size() == 0) continue;
    micro_batch.targets[shard.end - 1] = data::kIgnoredTarget;
    --micro_batch.num_targets;
  }
}

data::BatchPlan batch_plan(const recipe::RunConfig& run, const layout::LayoutConfig& layout) {
  return data::BatchPlan(train::batch_shape(run, layout));
}

}  // namespace

std::vector<data::Microbatch> supposed_batch(const recipe::RunConfig& run, const layout::LayoutConfig& layout,
                                             int64_t vocab_size, const SupposedBatch& options) {
  const int64_t length = run.training.seq_length, degree = layout.ulysses_degree;
  const auto sequence = supposed_sequence(length, vocab_size, layout.vocab_degree);
  std::vector<data::Microbatch> batch;
  const auto micro_batches = batch_plan(run, layout).micro_batches(/*step=*/0, options.group);
  for (const auto& indices : micro_batches) {
    const bool shorter = indices.size() < micro_batches.front().size();
    if (static_cast<int64_t>(batch.size()) >= options.most && !shorter) continue;
    auto& micro_batch = batch.emplace_back();
    const int64_t rest = static_cast<int64_t>(indices.size()) * length % degree;
    for (const int64_t index : indices) {
      const bool lengthen = options.fill_shards && rest > 0 && index == indices.back();
      micro_batch.append(
          lengthen ? supposed_sequence(length + degree - rest, vocab_size, layout.vocab_degree) : sequence,
          index);
    }
    drop_targets(micro_batch, degree);
  }
  return batch;
}

std::vector<int64_t> tokens_of_micro_batches(const recipe::RunConfig& run, const layout::LayoutConfig& layout,
                                             int64_t group) {
  std::vector<int64_t> tokens;
  for (const auto& indices : batch_plan(run, layout).micro_batches(/*step=*/0, group)) {
    tokens.push_back(static_cast<int64_t>(indices.size()) * run.training.seq_length);
  }
  return tokens;
}

int64_t supposed_rows(const recipe::RunConfig& run, const layout::LayoutConfig& layout, int64_t group) {
  const auto tokens = tokens_of_micro_batches(run, layout, group);
  return tokens.empty() ? 0 : *std::max_element(tokens.begin(), tokens.end());
}

int fullest_rank(const recipe::RunConfig& run, const layout::LayoutConfig& layout) {
  const auto plan = batch_plan(run, layout);
  int64_t fullest = 0;
  std::pair<size_t, size_t> most;  // in one micro-batch, in all
  for (int64_t group = 0; group < plan.shape().num_groups; ++group) {
    std::pair<size_t, size_t> its;
    for (const auto& micro_batch : plan.micro_batches(/*step=*/0, group)) {
      its = {std::max(its.first, micro_batch.size()), its.second + micro_batch.size()};
    }
    if (its > most) most = its, fullest = group;
  }
  return static_cast<int>(fullest * layout.ulysses_degree);
}

int64_t num_micro_batches(const recipe::RunConfig& run, const layout::LayoutConfig& layout) {
  const auto plan = batch_plan(run, layout);
  return plan.num_micro_batches(plan.shape().global_batch_size);
}

}  // namespace steppe::plan
