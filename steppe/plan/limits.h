// What a rank and its node may hold, and whether a plan stays within it.
#pragma once

#include <cstdint>

#include "steppe/plan/hardware.h"
#include "steppe/recipe/run_config.h"

namespace steppe::plan {

// An accelerator has memory of its own: a rank's tensors, and what no tensor has, share it. On a CPU all of a
// rank comes out of its share of the node; where the recipe sets hardware.device_memory, that is the limit of
// the tensors that stand for a device's, so that a GPU's limit can be tried on a laptop.
struct Limits {
  int64_t device_memory = 0;  // of a rank's device, or what stands for it
  int64_t node_memory = 0;    // of the host, for all ranks of a node
  int64_t ranks_per_node = 1;
  int64_t reserved_bytes = 0;   // of the device, for what no tensor has
  int64_t rounding_bytes = 0;   // of an accelerator, for its allocator: nothing optional fills them
  int64_t libraries_bytes = 0;  // of the host, by rank: on a CPU, where they are not the device's
  bool is_share = false;        // the device's memory is a rank's share of the node's
  bool is_apart = true;         // what moves to the host leaves the device more room
};

Limits limits_of(const Hardware& hardware, const recipe::HardwareSection& section);

// In bf16 on a CPU oneDNN's products take scratch while they run, on an accelerator grouped products and
// attention some tables, which no dry run knows (docs/plan.md, Limits): at most so many bytes of a rank.
int64_t unplanned_scratch(const Hardware& hardware, const recipe::RunConfig& run, int num_threads);

// Bytes that a rank's tensors need of what limits them, and those of a node.
struct Needs {
  int64_t device = 0, node = 0;
};

Needs needs_of(const Limits& limits, int64_t peak_bytes, int64_t host_bytes_per_node);
bool fits(const Limits& limits, const Needs& needs);

}  // namespace steppe::plan
