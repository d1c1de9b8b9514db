// The optimizer's placements on the same state and gradients, each checked against the resident one bit for
// bit before it is timed; beside the link's own speed, and beside PyTorch's and DeepSpeed's host updates.
#pragma once

#include <ATen/core/ScalarType.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace steppe::cli {

struct OptimizerBenchOptions {
  int64_t params = 40'000'000;
  int64_t bucket_params = 10'000'000, slots = 2;
  c10::ScalarType dtype = c10::kFloat;  // of working weights
  c10::ScalarType moments = c10::kFloat;
  bool host_gradients = false;  // of cpu and stream
  int64_t samples = 10;
  std::string peers_python;  // empty: no peers
};

// One way to make a step. What does not apply is nothing.
struct OptimizerBenchRow {
  // resident, cpu, stream; host_update: cpu's arithmetic alone, with everything in host memory, as peers have
  // it; link: stream's copies alone, both ways at a time; or a peer.
  std::string name;
  bool is_peer = false;
  double time_s = 0;                     // median
  std::optional<int64_t> device_bytes;   // masters and moments, held all the time
  std::optional<int64_t> host_bytes;     // masters, moments, gradients, staging
  std::optional<int64_t> staging_bytes;  // on the device, during a step
  std::optional<int64_t> link_bytes;     // each way and step; the larger
};

// Throws RuntimeFailure when a placement's state is not the resident's, bit for bit, or a peer's weights are
// not ours within rounding.
std::vector<OptimizerBenchRow> bench_optimizer(const OptimizerBenchOptions& options);

}  // namespace steppe::cli
