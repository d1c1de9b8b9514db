// What a plan is held against: memories and speeds of one kind of machine. Speeds are peaks of the data
// sheets; the time model says what share of them it counts on.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "steppe/recipe/run_config.h"

namespace steppe::plan {

struct Hardware {
  std::string name;
  int64_t device_memory = 0;  // bytes of a rank's device
  int64_t host_memory = 0;    // bytes of a node
  int64_t ranks_per_node = 1;
  double flops_per_s = 0;       // dense bf16 products of a device
  double wire_bytes_per_s = 0;  // out of a device, to other nodes
  double node_bytes_per_s = 0;  // out of a device, within its node
  double link_bytes_per_s = 0;  // between host and device, each way
  double host_bytes_per_s = 0;  // of a node's memory, reads and writes together
  bool is_accelerator = true;   // otherwise device memory is a share of the host's
};

std::span<const Hardware> hardware_presets();

// The preset, with what the recipe sets instead. "auto" is the machine at hand: its memory shared out to
// ranks_per_node ranks (default: all `world_size`). Throws ValueError naming the presets.
Hardware hardware_of(const recipe::HardwareSection& section, int world_size);

// Bytes that no tensor has: the device's context, libraries' workspaces, communicators' buffers.
int64_t reserved_bytes(const Hardware& hardware);

}  // namespace steppe::plan
