// What a step has computed and moved, counted by the operators themselves, so that training and the dry run
// read the same figures. One `Counters` per rank, passed by reference; never global, not thread-safe.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <string_view>

namespace steppe {

// Floating-point operations, a multiply-add being two, of products and of the update; norms, rotary embedding
// and activations are not counted. Recomputation counts again: these are done, not needed.
enum class FlopKind {
  kAttention,  // scores and weighted values
  kDense,      // projections of attention, dense feed-forward, shared experts
  kRouter,
  kExpert,
  kVocab,  // output projection and its loss
  kOptimizer,
  kCount
};

// Bytes this rank sends to other ranks; what a rank keeps for itself is not sent.
enum class WirePurpose {
  kWeights,    // gathers of ZeRO-3 shards
  kDispatch,   // tokens to experts and back
  kSequence,   // Ulysses' exchanges
  kVocab,      // embedding rows, hidden states and normalizers of the vocabulary loss
  kGradients,  // reduce-scatters, beside the layers
  kReplicas,   // gradients of experts and vocabulary shards, summed over their replicas when the step ends
  kControl,    // counts, norms, agreements
  kCount
};

// Bytes over the link between host and device, each way. A CPU's "device" counts as one.
enum class LinkDirection { kHostToDevice, kDeviceToHost, kCount };

enum class LinkPurpose {
  kBoundary,   // layers' inputs
  kSaved,      // attention outputs
  kGradients,  // accumulators that live on the host, and gradients on their way to an update there
  kOptimizer,  // masters and moments
  kWeights,    // working weights that the host has refreshed
  kControl,    // tokens, positions, indices
  kCount
};

// Lower-case names as they appear in metrics: "attention", "gradients", "h2d", "boundary".
std::string_view name(FlopKind kind);
std::string_view name(WirePurpose purpose);
std::string_view name(LinkDirection direction);
std::string_view name(LinkPurpose purpose);

// One int64 per value of an enumeration that ends in kCount.
template <class Kind>
class Tally {
 public:
  static constexpr std::size_t kSize = static_cast<std::size_t>(Kind::kCount);

  std::int64_t& operator[](Kind kind) { return values_[static_cast<std::size_t>(kind)]; }
  std::int64_t operator[](Kind kind) const { return values_[static_cast<std::size_t>(kind)]; }

  void add(Kind kind, std::int64_t amount) { (*this)[kind] += amount; }
  std::int64_t sum() const { return std::accumulate(values_.begin(), values_.end(), std::int64_t{0}); }
  void reset() { values_.fill(0); }

  // In the order of the enumeration; contiguous, so that ranks can sum it in one collective.
  std::array<std::int64_t, kSize>& values() { return values_; }
  const std::array<std::int64_t, kSize>& values() const { return values_; }

  Tally& operator+=(const Tally& other) {
    for (std::size_t i = 0; i < kSize; ++i) values_[i] += other.values_[i];
    return *this;
  }
  Tally& operator-=(const Tally& other) {
    for (std::size_t i = 0; i < kSize; ++i) values_[i] -= other.values_[i];
    return *this;
  }
  bool operator==(const Tally&) const = default;

 private:
  std::array<std::int64_t, kSize> values_{};
};

// A tally of purposes for either direction.
class LinkTally {
 public:
  Tally<LinkPurpose>& operator[](LinkDirection way) { return ways_[static_cast<std::size_t>(way)]; }
  const Tally<LinkPurpose>& operator[](LinkDirection way) const {
    return ways_[static_cast<std::size_t>(way)];
  }
  std::int64_t sum() const { return ways_[0].sum() + ways_[1].sum(); }
  void reset() { ways_ = {}; }
  LinkTally& operator+=(const LinkTally& other);
  LinkTally& operator-=(const LinkTally& other);
  bool operator==(const LinkTally&) const = default;

 private:
  std::array<Tally<LinkPurpose>, static_cast<std::size_t>(LinkDirection::kCount)> ways_;
};

struct Counters {
  Tally<FlopKind> flops;
  Tally<WirePurpose> wire_bytes;
  LinkTally link_bytes;

  void reset();
  Counters& operator+=(const Counters& other);
  // The difference of two readings is what happened between them.
  Counters& operator-=(const Counters& other);
  bool operator==(const Counters&) const = default;
};

}  // namespace steppe
