// Routings for measurements, as functions of a token's position. "r/h": the first ⌊rN/100⌋ tokens are hot,
// token i of them takes experts {j mod h}, j < k; every other token i takes {h + ((i+j) mod (E−h))}.
// `balanced`: {(i+j) mod E}; `one`: all to expert 0; `stride`: token i takes experts of rank (i mod K): what
// fills one chunk's destination. `random`: uniform, by a hash of token and listing. Weights are 1/k. With h <
// k a token lists an expert more than once: each listing is a route of its own.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace steppe::ops {

struct RoutingProfile {
  enum class Kind { kBalanced, kHot, kOne, kStride, kRandom };
  Kind kind = Kind::kBalanced;
  int64_t hot_percent = 0, hot_experts = 0;  // r, h

  // Throws ValueError naming what it may be.
  static RoutingProfile parse(std::string_view text);
  std::string name() const;

  struct Shape {
    int64_t num_tokens, num_experts;
    int64_t period = 1;            // of `stride`: the number of chunks
    int64_t experts_per_rank = 1;  // of `stride`
    uint64_t seed = 0;             // of `random`: one per rank
  };
  void experts_of(const Shape& shape, int64_t token, std::span<int32_t> experts_k) const;
};

}  // namespace steppe::ops
