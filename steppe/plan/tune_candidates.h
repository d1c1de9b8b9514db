// What `--tune` chooses from: every layout of the ranks, and for each the means that save device memory. Each
// candidate is sized by its budget and timed by its estimated work; nothing is run dry here.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "steppe/model/config.h"
#include "steppe/plan/budget_sizes.h"
#include "steppe/plan/hardware.h"

namespace steppe::plan {

// All of them cost time or risk it; none of them at once is best where there is room.
struct Means {
  bool recomputes = true;  // otherwise a layer keeps everything; recomputing, what attention outputs fit
  bool host_state = false;
  bool host_gradients = false;
  bool host_boundaries = false;
  int64_t token_budget = 16384;
  bool operator==(const Means&) const = default;
};

inline constexpr Means kEveryMeans{true, true, true, true, 4096};
inline constexpr int64_t kMostBucketParams = 100'000'000;
// From none to all.
std::vector<Means> all_means();
// Those with least on the device, as far as the host has room.
std::vector<Means> saving_means();
inline constexpr int64_t kBoundless = int64_t{1} << 60;

// Bytes that a rank's tensors may take.
struct Room {
  int64_t device = 0, host = 0;
  // Of a node's memory the offload and the optimizer take at most this share.
  static constexpr double kHostShare = 0.8;
};

struct TuneProblem {
  recipe::RunConfig run;  // with the layout and the means that it came with
  model::ModelConfig model;
  Hardware hardware;
  int world_size = 1, num_threads = 1;

  TuneProblem(const recipe::RunConfig& run, int world_size, int num_threads);
  Room room() const;
  TuneProblem with_host_memory(int64_t bytes) const;
  DryRunOptions dry_run_options() const;
};

struct Candidate {
  recipe::RunConfig run;
  Means means;
  Budget budget;               // with nothing kept of attention
  double seconds_a_token = 0;  // estimated
};

// Layers of such runs route alike, whatever the means: counted once.
class RoutedSizes {
 public:
  explicit RoutedSizes(const TuneProblem& problem) : problem_(problem) {}
  Sizes sizes_of(const recipe::RunConfig& run, const DryRunOptions& options);

 private:
  const TuneProblem& problem_;
  std::map<std::array<int64_t, 3>, Sizes> known_;  // by D, E_p, token budget
};

// parallelism.* alone.
std::vector<recipe::ParallelismSection> all_layouts(const TuneProblem& problem);
// Sets by what is left: who updates state on the host, offload.host_budget, the room for attention outputs,
// and smaller buckets where their staging would be what needs most.
Candidate make_candidate(const TuneProblem& problem, const recipe::ParallelismSection& layout,
                         const Means& means, RoutedSizes& routed);

// The next smaller size of the optimizer's buckets, a power of ten, for a rank that updates `params_of_rank`
// parameters. Nothing below 1M, or below a 64th of what a rank with less has: then it would copy pieces that
// are not worth their copies.
std::optional<int64_t> smaller_buckets(int64_t bucket_params, int64_t params_of_rank);

// Of the optimizer's update, were the run's state in such a place.
double update_seconds(const TuneProblem& problem, const recipe::RunConfig& run, const char* placement);

// How many times the room that a candidate needs, of the device or the host; at most 1: it fits.
double fullness(const Budget& budget, const Room& room);
int64_t tokens_of_step(const recipe::RunConfig& run, int world_size);

}  // namespace steppe::plan
