// The rows of a batch that have a target, counted without the others: where they are, so that they can be
// moved together and back. Host only.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "steppe/kernels/row_block.h"

namespace steppe::ops {

class KeptRows {
 public:
  // All of `rows`.
  explicit KeptRows(int64_t rows);
  // Those whose target is not negative.
  explicit KeptRows(std::span<const int32_t> targets);

  int64_t size() const { return size_; }
  bool all() const { return all_; }
  // Kept rows [begin, begin + rows), from the batch to [0, rows).
  std::vector<kernels::RowBlock> blocks(int64_t begin, int64_t rows) const;

 private:
  struct Run {
    int64_t kept, row, size;  // kept rows [kept, kept + size) are the batch's from `row` on
  };
  std::vector<Run> runs_;
  int64_t size_ = 0;
  bool all_ = true;
};

// The way back.
std::vector<kernels::RowBlock> reversed(std::vector<kernels::RowBlock> blocks);

}  // namespace steppe::ops
