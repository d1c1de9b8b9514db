#include "steppe/data/blend.h"

#include <algorithm>
#include <cmath>

#include "steppe/base/error.h"

namespace steppe::data {
namespace {

constexpr uint64_t kOne = uint64_t{1} << 32;

int64_t rounded_share(int64_t count, uint64_t share) {
  const auto product = static_cast<unsigned __int128>(count) * share + kOne / 2;
  return static_cast<int64_t>(product >> 32);
}

}  // namespace

Blend::Blend(const std::vector<double>& weights) {
  STEPPE_CHECK_VALUE(!weights.empty(), "[data] a blend needs at least one dataset, got none");
  for (const double weight : weights) {
    STEPPE_CHECK_VALUE(std::isfinite(weight) && weight > 0, "[data] weights must be above 0, got {}", weight);
  }
  shares_.resize(weights.size());
  double rest = 0;
  for (size_t d = weights.size(); d-- > 0;) {
    rest += weights[d];
    // Neither 0 nor 1 before the last: no dataset is left out for good.
    const auto share = std::llround(weights[d] / rest * static_cast<double>(kOne));
    shares_[d] = std::clamp<uint64_t>(static_cast<uint64_t>(share), 1, kOne - 1);
  }
  shares_.back() = kOne;
}

Blend::Choice Blend::choose(int64_t sequence) const {
  STEPPE_ASSERT(sequence >= 0, "[data] sequence {}", sequence);
  for (size_t dataset = 0;; ++dataset) {
    const int64_t before = rounded_share(sequence, shares_[dataset]);
    if (rounded_share(sequence + 1, shares_[dataset]) > before) return {dataset, before};
    sequence -= before;
  }
}

std::vector<int64_t> Blend::taken(int64_t sequences) const {
  std::vector<int64_t> counts;
  for (const uint64_t share : shares_) {
    counts.push_back(rounded_share(sequences, share));
    sequences -= counts.back();
  }
  return counts;
}

int64_t Blend::sequences_covering(const std::vector<int64_t>& counts) const {
  STEPPE_ASSERT(counts.size() == shares_.size(), "[data] {} counts for {} datasets", counts.size(),
                shares_.size());
  const auto covers = [&](int64_t sequences) {
    const std::vector<int64_t> got = taken(sequences);
    return std::equal(got.begin(), got.end(), counts.begin(), [](int64_t a, int64_t b) { return a >= b; });
  };
  int64_t low = -1;
  int64_t high = 1;
  while (!covers(high)) {
    STEPPE_CHECK_VALUE(high < (int64_t{1} << 60),
                       "[data] weights differ too much for an epoch to be counted");
    low = high;
    high *= 2;
  }
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    (covers(middle) ? high : low) = middle;
  }
  return high;
}

}  // namespace steppe::data
