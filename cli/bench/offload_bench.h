// Training steps of one small model that differ only in where boundaries and attention outputs are kept: on
// the same weights and tokens, in turns, each checked to give the same loss and gradient norm to the bit; or
// on `meta`, for the bytes alone. One rank, on the CUDA device where there is one.
#pragma once

#include <ATen/core/ScalarType.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace steppe::cli {

struct OffloadBenchOptions {
  int64_t tokens = 4096;  // one sequence, one document
  int64_t layers = 6, hidden = 256, heads = 8, kv_heads = 2, head_dim = 32;
  int64_t experts = 8, top_k = 2, intermediate = 256;  // of an expert
  int64_t vocab = 4096;
  c10::ScalarType dtype = c10::kFloat;
  bool dry = false;
  bool pin_memory = true;
  int64_t samples = 10;
  std::vector<std::string> placements;  // empty: all
};

struct OffloadBenchRow {
  std::string placement;
  int64_t boundaries_on_host = 0, outputs_on_device = 0, outputs_on_host = 0;  // layers
  int64_t peak_bytes = 0;                                                      // of the device
  int64_t boundary_bytes = 0, saved_bytes = 0;  // the most that these categories held there
  int64_t host_bytes = 0;
  int64_t attention_flops = 0;
  std::optional<int64_t> allocator_peak_bytes;  // PyTorch's own figure, on CUDA
  std::optional<double> time_s;                 // median of forward and backward; nothing in a dry run
  std::optional<double> against_device;         // median of the ratios of neighbouring samples
};

// Throws RuntimeFailure when a placement's loss or gradient norm is not that of "device" to the bit.
std::vector<OffloadBenchRow> bench_offload(const OffloadBenchOptions& options);
const std::vector<std::string>& offload_bench_placements();

}  // namespace steppe::cli
