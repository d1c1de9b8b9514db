// Which sequences a step reads, and how they are dealt to groups and micro-batches. Pure arithmetic.
//
// A group is the D ranks that share sequences (Ulysses); there are W / D of them. The sequences of step s are
// [s·B, (s+1)·B) whatever the layout; group g takes a contiguous part, as even as can be. All groups run the
// same number of micro-batches, so that their collectives pair up: one with fewer sequences ends with
// micro-batches of no tokens.
#pragma once

#include <cstdint>
#include <vector>

#include "steppe/data/sequence_stream.h"

namespace steppe::data {

struct BatchShape {
  int64_t global_batch_size = 1;  // B, sequences per step over all groups
  int64_t micro_batch_size = 1;   // sequences of a group at a time
  int64_t num_groups = 1;         // W / D
};

class BatchPlan {
 public:
  // ValueError unless all three are at least 1.
  explicit BatchPlan(const BatchShape& shape);

  const BatchShape& shape() const { return shape_; }
  // Micro-batches of a step of `num_sequences`.
  int64_t num_micro_batches(int64_t num_sequences) const;
  // Numbers of the sequences of each micro-batch of `group` in a step of the endless training data.
  std::vector<std::vector<int64_t>> micro_batches(int64_t step, int64_t group) const;
  // The same over a set of `set_sequences`, whose last step may be shorter.
  std::vector<std::vector<int64_t>> micro_batches(int64_t step, int64_t group, int64_t set_sequences) const;
  int64_t num_steps(int64_t set_sequences) const;

 private:
  std::vector<std::vector<int64_t>> deal(int64_t first, int64_t count, int64_t group) const;

  BatchShape shape_;
};

// What one group works on at a time: sequences end to end. All its ranks hold the same one, and take their
// token shards of it later.
struct Microbatch {
  std::vector<int32_t> tokens;
  std::vector<int32_t> targets;
  std::vector<int32_t> positions;
  std::vector<int64_t> document_bounds = {0};  // 0, …, number of tokens; strictly increasing
  // Sequence's number × seq_length + offset: names a token whatever the layout.
  std::vector<int64_t> token_ids;
  int64_t num_targets = 0;  // entries of `targets` that are not ignored

  int64_t num_tokens() const { return static_cast<int64_t>(tokens.size()); }
  void append(const Sequence& sequence, int64_t sequence_index);
};

}  // namespace steppe::data
