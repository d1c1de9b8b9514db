#include "steppe/plan/limits.h"

namespace steppe::plan {

Limits limits_of(const Hardware& hardware, const recipe::HardwareSection& section) {
  Limits limits{.node_memory = hardware.host_memory, .ranks_per_node = hardware.ranks_per_node};
  if (hardware.is_accelerator) {
    limits.device_memory = hardware.device_memory;
    limits.reserved_bytes = reserved_bytes(hardware);
    limits.rounding_bytes = hardware.device_memory / 50;
  } else if (section.device_memory) {
    limits.device_memory = *section.device_memory;
    limits.libraries_bytes = reserved_bytes(hardware);
  } else {
    limits.device_memory = hardware.host_memory / hardware.ranks_per_node;
    limits.reserved_bytes = reserved_bytes(hardware);
    limits.is_share = true, limits.is_apart = false;
  }
  return limits;
}

int64_t unplanned_scratch(const Hardware& hardware, const recipe::RunConfig& run, int num_threads) {
  constexpr int64_t kOfAThread = int64_t{2} << 20;      // measured: up to 1.7 MiB
  constexpr int64_t kOfAccelerator = int64_t{1} << 20;  // tables and workspace of a grouped product: 0.1 MiB
  if (hardware.is_accelerator) return kOfAccelerator;
  return run.model.compute_dtype == "bfloat16" ? num_threads * kOfAThread : 0;
}

Needs needs_of(const Limits& limits, int64_t peak_bytes, int64_t host_bytes_per_node) {
  Needs needs{peak_bytes + limits.reserved_bytes, host_bytes_per_node};
  if (limits.is_share) {
    needs.device += host_bytes_per_node / limits.ranks_per_node;
  } else if (limits.libraries_bytes > 0) {
    needs.node += limits.ranks_per_node * (peak_bytes + limits.libraries_bytes);
  }
  return needs;
}

bool fits(const Limits& limits, const Needs& needs) {
  return needs.device <= limits.device_memory && needs.node <= limits.node_memory;
}

}  // namespace steppe::plan
