#include "steppe/plan/hardware.h"

#include <ATen/Context.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "steppe/base/error.h"

namespace steppe::plan {
namespace {

constexpr int64_t kGB = 1'000'000'000;

// Eight devices a node, a 400 Gb/s adapter for each (A100: 200), NVLink among them, PCIe 5 (A100: 4) to the
// host; its memory has 16 channels of DDR5-4800 (A100: DDR4-3200, B200: DDR5-5600).
const std::array kPresets = {
    Hardware{"A100", 80 * kGB, 1000 * kGB, 8, 312e12, 25e9, 300e9, 25e9, 410e9, true},
    Hardware{"H100", 80 * kGB, 2000 * kGB, 8, 989e12, 50e9, 450e9, 55e9, 614e9, true},
    Hardware{"H200", 141 * kGB, 2000 * kGB, 8, 989e12, 50e9, 450e9, 55e9, 614e9, true},
    Hardware{"B200", 180 * kGB, 2000 * kGB, 8, 2250e12, 50e9, 900e9, 55e9, 717e9, true},
};

int64_t host_memory_at_hand() {
  return sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGE_SIZE);
}

// A CUDA device's speeds are not asked for: those of an H100 stand for them. A CPU's are rough.
Hardware machine_at_hand(int64_t ranks_per_node) {
  const int64_t host = host_memory_at_hand();
  if (at::globalContext().hasCUDA()) {
    const auto total = c10::getDeviceAllocator(at::kCUDA)->getMemoryInfo(0).second;
    return {"this machine (CUDA)",
            static_cast<int64_t>(total),
            host,
            ranks_per_node,
            989e12,
            50e9,
            450e9,
            55e9,
            614e9,
            true};
  }
  const auto ranks = static_cast<double>(ranks_per_node);
  const auto cores = static_cast<double>(sysconf(_SC_NPROCESSORS_ONLN));
  return {"this machine (CPU)",
          host / ranks_per_node,
          host,
          ranks_per_node,
          cores / ranks * 30e9,
          2e9,
          2e9,
          10e9,
          20e9,
          false};
}

const Hardware& preset(const std::string& name) {
  const auto found = std::find_if(kPresets.begin(), kPresets.end(),
                                  [&](const Hardware& hardware) { return hardware.name == name; });
  std::string names;
  for (const auto& known : kPresets) names += fmt::format(", \"{}\"", known.name);
  STEPPE_CHECK_VALUE(found != kPresets.end(), "[plan] hardware.preset must be \"auto\"{}, got \"{}\"", names,
                     name);
  return *found;
}

}  // namespace

std::span<const Hardware> hardware_presets() {
  return kPresets;
}

Hardware hardware_of(const recipe::HardwareSection& section, int world_size) {
  auto hardware = section.preset == "auto" ? machine_at_hand(section.ranks_per_node.value_or(world_size))
                                           : preset(section.preset);
  hardware.ranks_per_node =
      std::min<int64_t>(world_size, section.ranks_per_node.value_or(hardware.ranks_per_node));
  hardware.device_memory = section.device_memory.value_or(hardware.device_memory);
  hardware.host_memory = section.host_memory.value_or(hardware.host_memory);
  hardware.link_bytes_per_s = section.link.value_or(hardware.link_bytes_per_s);
  return hardware;
}

int64_t reserved_bytes(const Hardware& hardware) {
  // Measured: 340 MB of libraries in a process on a CPU; about 0.5 GiB of context, 0.1 of workspaces and up
  // to 0.2 for each of seven communicators on an accelerator.
  return hardware.is_accelerator ? int64_t{2} << 30 : int64_t{340} << 20;
}

}  // namespace steppe::plan
