// Where a run keeps its boundaries and attention outputs, and the host memory that takes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "steppe/offload/attention_outputs.h"

namespace steppe::offload {

enum class BoundaryPolicy : uint8_t {
  kNone,  // all on the device
  kSco,   // in forward order, what the budget holds
  kAll,   // all in host memory; an error when the budget does not hold them
};

// Of one rank.
struct OffloadConfig {
  BoundaryPolicy boundaries = BoundaryPolicy::kNone;
  int64_t boundary_host_bytes = 0;                 // of the arena, taken once
  std::vector<OutputPlacement> attention_outputs;  // per layer; empty: all recomputed
  int64_t output_host_bytes = 0;                   // of the arena, taken once
  int64_t output_device_bytes = 0;                 // of those on the device, at most at a time
  bool pin_memory = true;
  std::string description;  // a line for the start of the run; empty: nothing is kept elsewhere

  bool uses_host() const { return boundary_host_bytes > 0 || output_host_bytes > 0; }
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
int64_t boundary_arena_bytes(BoundaryPolicy policy, int64_t share, const BoundaryBytes& boundaries);

}  // namespace steppe::offload
