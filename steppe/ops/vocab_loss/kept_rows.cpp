#include "steppe/ops/vocab_loss/kept_rows.h"

#include <algorithm>
#include <utility>

namespace steppe::ops {

KeptRows::KeptRows(int64_t rows) : size_(rows) {
  if (rows > 0) runs_.push_back({0, 0, rows});
}

KeptRows::KeptRows(std::span<const int32_t> targets) {
  bool open = false;
  for (size_t row = 0; row < targets.size(); ++row) {
    const bool kept = targets[row] >= 0;
    all_ = all_ && kept;
    if (kept && !open) runs_.push_back({size_, static_cast<int64_t>(row), 0});
    if (kept) {
      ++runs_.back().size;
      ++size_;
    }
    open = kept;
  }
}

std::vector<kernels::RowBlock> KeptRows::blocks(int64_t begin, int64_t rows) const {
  std::vector<kernels::RowBlock> blocks;
  const int64_t end = begin + rows;
  // The first run that reaches beyond `begin`.
  auto run = std::partition_point(runs_.begin(), runs_.end(),
                                  [&](const Run& r) { return r.kept + r.size <= begin; });
  for (; run != runs_.end() && run->kept < end; ++run) {
    const int64_t first = std::max(begin, run->kept), last = std::min(end, run->kept + run->size);
    blocks.push_back({first - begin, run->row + first - run->kept, last - first});
  }
  return blocks;
}

std::vector<kernels::RowBlock> reversed(std::vector<kernels::RowBlock> blocks) {
  for (auto& block : blocks) std::swap(block.to, block.from);
  return blocks;
}

}  // namespace steppe::ops
