// Where the boundaries of a run are kept, and the host memory that takes.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace steppe::offload {

enum class ActivationPolicy : uint8_t {
  kNone,  // all on the device
  kSco,   // in forward order, what the budget holds
  kAll,   // all in host memory; an error when the budget does not hold them
};

struct OffloadConfig {
  ActivationPolicy activations = ActivationPolicy::kNone;
  int64_t host_bytes = 0;  // of this rank's arena, taken once
  bool pin_memory = true;
  std::function<void(const std::string& warning)> warn = [](const std::string&) {};
};

// A rank's equal share of its node's budget, whole ranges of the arena.
int64_t host_share(int64_t node_budget, int64_t ranks_per_node);

struct BoundaryBytes {
  int64_t num_layers = 0;
  int64_t largest_num_tokens = 0;  // of a micro-batch, on any rank
  int64_t hidden_size = 0;
  int64_t itemsize = 0;
  int64_t of_one() const;  // in host memory
};

// The size of a rank's arena: no more than its share, no more than its boundaries ever take; none under
// kNone. ValueError naming offload.host_budget when kAll does not fit.
int64_t boundary_arena_bytes(ActivationPolicy policy, int64_t share, const BoundaryBytes& boundaries);

}  // namespace steppe::offload
