// Which layers keep attention's output and log-sum-exp from their forward to their backward, and where: so
// that the backward need not run attention again. By work saved per byte, under a budget of device bytes and
// one of host bytes: the best go to the device until it is full, the next best to the host, the rest are
// recomputed. A layer that would fit neither budget any more is passed over. Deterministic: work is counted,
// not timed; of equals the later layers stay on the device, where they are needed soonest, and the earlier
// ones travel, which have the longest to do so.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace steppe::offload {

enum class OutputPlacement : uint8_t { kRecompute, kDevice, kHost };

struct OutputCost {
  int64_t flops = 0;         // of the attention forward that the backward is spared
  int64_t device_bytes = 0;  // output and log-sum-exp
  int64_t host_bytes = 0;    // the same in ranges of an arena
};

// Of one layer's output on a rank: `row_tokens` tokens of the sequence group's row (one document), of whose
// heads the rank has `num_heads`.
OutputCost attention_output_cost(int64_t row_tokens, int64_t num_heads, int64_t head_dim, int64_t itemsize);

struct OutputBudgets {
  int64_t device_bytes = 0;
  int64_t host_bytes = 0;
  bool operator==(const OutputBudgets&) const = default;
};

// One placement per layer.
std::vector<OutputPlacement> choose_output_placements(std::span<const OutputCost> layers,
                                                      const OutputBudgets& budgets);

// As above where layers that travel need room on the device too: its budget is for those that stay and for
// the two that are on their way at a time. Nobody travels where that saves no more work.
std::vector<OutputPlacement> choose_within_room(std::span<const OutputCost> layers,
                                                const OutputBudgets& room);

// Bytes that the layers so placed take at most on the device at a time, and in host memory.
int64_t device_bytes_of(std::span<const OutputPlacement> placements, std::span<const OutputCost> layers);
int64_t host_bytes_of(std::span<const OutputPlacement> placements, std::span<const OutputCost> layers);

// "attention outputs: 30 of 39 layers on the device (4.5GiB), 5 in host memory (768MiB), 4 recomputed"
std::string describe(std::span<const OutputPlacement> placements, std::span<const OutputCost> layers);

}  // namespace steppe::offload
