// Routes between the ranks of an expert group, counted: what every plan of a dispatch is a function of. No
// Torch.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace steppe::ops {

// Which tokens of a rank form a chunk. Either way the first N % K chunks have one token more than the others.
enum class Membership { kStrided, kContiguous };  // token t in chunk t mod K, or K runs of tokens

struct ChunkSplit {
  int64_t num_chunks = 1;
  Membership membership = Membership::kStrided;

  int64_t tokens(int64_t chunk, int64_t num_tokens) const {
    return num_tokens / num_chunks + (chunk < num_tokens % num_chunks ? 1 : 0);
  }
  // Token j of a chunk is token first + j·stride of the rank.
  int64_t first_token(int64_t chunk, int64_t num_tokens) const {
    if (membership == Membership::kStrided) return chunk;
    const int64_t longer = num_tokens % num_chunks;
    return chunk * (num_tokens / num_chunks) + (chunk < longer ? chunk : longer);
  }
  int64_t stride() const { return membership == Membership::kStrided ? num_chunks : 1; }
};

// K = min(⌈N/c⌉, K_max) for the largest N of the group, and at least 1.
inline int64_t number_of_chunks(int64_t largest_num_tokens, int64_t token_budget, int64_t max_chunks) {
  if (largest_num_tokens <= token_budget) return 1;
  const int64_t wanted = 1 + (largest_num_tokens - 1) / token_budget;
  const int64_t chunks = wanted < max_chunks ? wanted : max_chunks;
  return chunks > 1 ? chunks : 1;
}

// Routes from every source rank of the group to every expert, known to all its ranks.
struct RouteCounts {
  int64_t num_experts = 0;
  std::vector<int64_t> routes;  // [source][chunk][expert]
  ChunkSplit split{};

  int64_t num_sources() const {
    return static_cast<int64_t>(routes.size()) / (split.num_chunks * num_experts);
  }
  std::span<const int64_t> of(int64_t source, int64_t chunk) const {
    return std::span(routes).subspan((source * split.num_chunks + chunk) * num_experts, num_experts);
  }
  int64_t from_to(int64_t source, int64_t expert) const {
    int64_t sum = 0;
    for (int64_t chunk = 0; chunk < split.num_chunks; ++chunk) sum += of(source, chunk)[expert];
    return sum;
  }
};

}  // namespace steppe::ops
