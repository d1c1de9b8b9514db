#include "steppe/data/batch_plan.h"

#include <algorithm>

#include "steppe/base/error.h"

namespace steppe::data {
namespace {
int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}
}  // namespace

BatchPlan::BatchPlan(const BatchShape& shape) : shape_(shape) {
  STEPPE_CHECK_VALUE(shape.global_batch_size >= 1,
                     "[data] `training.global_batch_size` must be at least 1, got {}",
                     shape.global_batch_size);
  STEPPE_CHECK_VALUE(shape.micro_batch_size >= 1,
                     "[data] `training.micro_batch_size` must be at least 1, got {}", shape.micro_batch_size);
  STEPPE_CHECK_VALUE(shape.num_groups >= 1, "[data] num_groups must be at least 1, got {}", shape.num_groups);
}

int64_t BatchPlan::num_micro_batches(int64_t num_sequences) const {
  return ceil_div(ceil_div(num_sequences, shape_.num_groups), shape_.micro_batch_size);
}

int64_t BatchPlan::num_steps(int64_t set_sequences) const {
  return ceil_div(set_sequences, shape_.global_batch_size);
}

std::vector<std::vector<int64_t>> BatchPlan::micro_batches(int64_t step, int64_t group) const {
  return deal(step * shape_.global_batch_size, shape_.global_batch_size, group);
}

std::vector<std::vector<int64_t>> BatchPlan::micro_batches(int64_t step, int64_t group,
                                                           int64_t set_sequences) const {
  STEPPE_ASSERT(step < num_steps(set_sequences), "[data] step {} of {}", step, num_steps(set_sequences));
  const int64_t first = step * shape_.global_batch_size;
  return deal(first, std::min(shape_.global_batch_size, set_sequences - first), group);
}

std::vector<std::vector<int64_t>> BatchPlan::deal(int64_t first, int64_t count, int64_t group) const {
  STEPPE_ASSERT(first >= 0 && group >= 0 && group < shape_.num_groups, "[data] sequence {}, group {} of {}",
                first, group, shape_.num_groups);
  std::vector<std::vector<int64_t>> dealt(static_cast<size_t>(num_micro_batches(count)));
  // 128 bits: neither count nor group is bounded by what a product of the two can hold.
  const auto bound = [&](int64_t g) {
    return first + static_cast<int64_t>(static_cast<__int128>(count) * g / shape_.num_groups);
  };
  const int64_t begin = bound(group);
  for (int64_t sequence = begin; sequence < bound(group + 1); ++sequence) {
    dealt[static_cast<size_t>((sequence - begin) / shape_.micro_batch_size)].push_back(sequence);
  }
  return dealt;
}

void Microbatch::append(const Sequence& sequence, int64_t sequence_index) {
  const int64_t base = num_tokens();
  const auto length = static_cast<int64_t>(sequence.tokens.size());
  tokens.insert(tokens.end(), sequence.tokens.begin(), sequence.tokens.end());
  targets.insert(targets.end(), sequence.targets.begin(), sequence.targets.end());
  positions.insert(positions.end(), sequence.positions.begin(), sequence.positions.end());
  // The bound at `base` is there already: 0, or the end of the sequence before.
  for (const int32_t start : sequence.document_starts) {
    if (start > 0) document_bounds.push_back(base + start);
  }
  document_bounds.push_back(base + length);
  for (int64_t i = 0; i < length; ++i) token_ids.push_back(sequence_index * length + i);
  num_targets += length - std::count(sequence.targets.begin(), sequence.targets.end(), kIgnoredTarget);
}

}  // namespace steppe::data
