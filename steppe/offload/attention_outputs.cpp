#include "steppe/offload/attention_outputs.h"

#include <algorithm>
#include <numeric>

#include "steppe/base/bytes.h"
#include "steppe/base/error.h"
#include "steppe/memory/host_arena.h"

namespace steppe::offload {
namespace {

// a saves more work per byte than b. In 128 bits: flops at a million tokens times bytes pass 64.
bool saves_more(const OutputCost& a, const OutputCost& b) {
  return static_cast<__int128>(a.flops) * b.device_bytes > static_cast<__int128>(b.flops) * a.device_bytes;
}

__int128 flops_saved(std::span<const OutputPlacement> placements, std::span<const OutputCost> layers) {
  __int128 flops = 0;
  for (size_t i = 0; i < placements.size(); ++i) {
    if (placements[i] != OutputPlacement::kRecompute) flops += layers[i].flops;
  }
  return flops;
}

// Two at a time: on the way out beside the layer that computes the next, on the way back beside the one at
// work.
int64_t largest_on_the_way(std::span<const OutputCost> layers) {
  int64_t largest = 0;
  for (const auto& layer : layers) largest = std::max(largest, layer.device_bytes);
  return 2 * largest;
}

// Layers whose output is worth its bytes, best first; equals in the order in which they are given.
std::vector<size_t> best_first(std::vector<size_t> order, std::span<const OutputCost> layers) {
  std::erase_if(order, [&](size_t i) { return layers[i].flops <= 0; });
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return saves_more(layers[a], layers[b]); });
  return order;
}

}  // namespace

OutputCost attention_output_cost(int64_t row_tokens, int64_t num_heads, int64_t head_dim, int64_t itemsize) {
  const int64_t output = row_tokens * num_heads * head_dim * itemsize, lse = row_tokens * num_heads * 4;
  return {4 * (row_tokens * (row_tokens + 1) / 2) * num_heads * head_dim, output + lse,
          memory::HostArena::aligned(output) + memory::HostArena::aligned(lse)};
}

std::vector<OutputPlacement> choose_output_placements(std::span<const OutputCost> layers,
                                                      const OutputBudgets& budgets) {
  std::vector<OutputPlacement> placements(layers.size(), OutputPlacement::kRecompute);
  std::vector<size_t> forward(layers.size());
  std::iota(forward.begin(), forward.end(), size_t{0});
  int64_t left = budgets.device_bytes;
  for (const size_t i : best_first({forward.rbegin(), forward.rend()}, layers)) {
    if (layers[i].device_bytes > left) continue;
    placements[i] = OutputPlacement::kDevice;
    left -= layers[i].device_bytes;
  }
  left = budgets.host_bytes;
  for (const size_t i : best_first(forward, layers)) {
    if (placements[i] == OutputPlacement::kDevice || layers[i].host_bytes > left) continue;
    placements[i] = OutputPlacement::kHost;
    left -= layers[i].host_bytes;
  }
  return placements;
}

std::vector<OutputPlacement> choose_within_room(std::span<const OutputCost> layers,
                                                const OutputBudgets& room) {
  auto stay = choose_output_placements(layers, {room.device_bytes, 0});
  const int64_t beside = room.device_bytes - largest_on_the_way(layers);
  if (room.host_bytes == 0 || beside < 0) return stay;
  auto travel = choose_output_placements(layers, {beside, room.host_bytes});
  return flops_saved(travel, layers) > flops_saved(stay, layers) ? travel : stay;
}

int64_t device_bytes_of(std::span<const OutputPlacement> placements, std::span<const OutputCost> layers) {
  int64_t bytes = 0;
  bool any_travels = false;
  for (size_t i = 0; i < placements.size(); ++i) {
    if (placements[i] == OutputPlacement::kDevice) bytes += layers[i].device_bytes;
    any_travels = any_travels || placements[i] == OutputPlacement::kHost;
  }
  return bytes + (any_travels ? largest_on_the_way(layers) : 0);
}

int64_t host_bytes_of(std::span<const OutputPlacement> placements, std::span<const OutputCost> layers) {
  int64_t bytes = 0;
  for (size_t i = 0; i < placements.size(); ++i) {
    if (placements[i] == OutputPlacement::kHost) bytes += layers[i].host_bytes;
  }
  return bytes;
}

std::string describe(std::span<const OutputPlacement> placements, std::span<const OutputCost> layers) {
  int64_t on_device = 0, device_bytes = 0, on_host = 0;
  for (size_t i = 0; i < placements.size(); ++i) {
    if (placements[i] == OutputPlacement::kDevice) ++on_device, device_bytes += layers[i].device_bytes;
    if (placements[i] == OutputPlacement::kHost) ++on_host;
  }
  return fmt::format(
      "attention outputs: {} of {} layers on the device ({}), {} in host memory ({}), {} recomputed",
      on_device, placements.size(), format_bytes(device_bytes), on_host,
      format_bytes(host_bytes_of(placements, layers)),
      static_cast<int64_t>(placements.size()) - on_device - on_host);
}

}  // namespace steppe::offload
