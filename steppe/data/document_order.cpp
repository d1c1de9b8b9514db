#include "steppe/data/document_order.h"

#include <algorithm>
#include <utility>

#include "steppe/base/error.h"
#include "steppe/data/fixed_random.h"

namespace steppe::data {
namespace {
constexpr size_t kStride = 64;
}

DocumentOrder::DocumentOrder(std::vector<uint32_t> documents, const Units& units, bool shuffle, uint64_t seed,
                             uint64_t epoch)
    : documents_(std::move(documents)) {
  if (shuffle) {
    FixedRandom random(seed, epoch);
    fixed_shuffle(documents_, random);
  }
  checkpoints_.reserve(documents_.size() / kStride + 1);
  for (size_t rank = 0; rank < documents_.size(); ++rank) {
    if (rank % kStride == 0) checkpoints_.push_back(num_units_);
    num_units_ += units(documents_[rank]);
  }
}

DocumentOrder::Place DocumentOrder::locate(int64_t unit, const Units& units) const {
  STEPPE_ASSERT(unit >= 0 && unit < num_units_, "[data] unit {} of {}", unit, num_units_);
  const auto after = std::upper_bound(checkpoints_.begin(), checkpoints_.end(), unit);
  const auto checkpoint = static_cast<size_t>(after - checkpoints_.begin()) - 1;
  int64_t offset = unit - checkpoints_[checkpoint];
  for (size_t rank = checkpoint * kStride;; ++rank) {
    const int64_t length = units(documents_[rank]);
    if (offset < length) return {static_cast<int64_t>(rank), offset};
    offset -= length;
  }
}

}  // namespace steppe::data
