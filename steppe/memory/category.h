// What an allocation is for. Every byte has one category: that of the innermost Scope on the allocating
// thread.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace steppe::memory {

enum class Category : uint8_t {
  kUntagged,   // outside any scope: at most 1 % of a step's peak
  kWeights,    // working weights a rank keeps
  kGathered,   // dense weights gathered for a layer
  kGrads,      // gradient accumulators, and a layer's gradient before its reduce-scatter
  kOptimizer,  // fp32 masters and moments
  kBoundary,   // layer inputs kept for the backward pass
  kSaved,      // everything else kept between the passes (activation_checkpoint.mode = "none")
  kResidual,   // the residual stream, its gradient, and the recomputed layer input
  kAttention,  // norm, projections, exchange and attention of the layer at hand
  kRouting,    // router scores, pinned expert ids and weights
  kDispatch,   // rows on their way to experts and back
  kExpert,     // expert interiors
  kFfn,        // dense and shared-expert interiors
  kVocab,      // logits, their gathers and statistics
  kStaging,    // optimizer staging, wire buffers of weights and gradients
  kBatch,      // tokens, targets, positions, rotary tables
  kControl,    // host counts on the device, flags, non-finite counters
};
inline constexpr int kNumCategories = static_cast<int>(Category::kControl) + 1;
std::string_view category_name(Category category);

// Where the bytes live. On a CPU the "device" is everything not taken from the host arena.
enum class Domain : uint8_t { kDevice, kHost };
inline constexpr int kNumDomains = 2;
std::string_view domain_name(Domain domain);

using BytesByCategory = std::array<int64_t, kNumCategories>;

}  // namespace steppe::memory
