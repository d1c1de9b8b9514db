// One rank's part of the layer that the benchmark of dispatch runs.
#pragma once

#include "cli/bench/dispatch_bench.h"
#include "steppe/comm/communicator.h"

namespace steppe::cli {

// Counts the exchanges of activations: those in which this rank sends itself something, of two dims.
class CountingCommunicator final : public comm::Communicator {
 public:
  explicit CountingCommunicator(comm::Communicator& inner)
      : Communicator(inner.name(), inner.rank(), inner.size()), inner_(inner) {}

  comm::Pending exchange(std::span<const at::Tensor> sends, std::span<const at::Tensor> receives) override;
  std::vector<int64_t> all_gather_host(std::span<const int64_t> mine) override {
    return inner_.all_gather_host(mine);
  }
  void barrier() override { inner_.barrier(); }
  int64_t activations = 0;

 private:
  comm::Communicator& inner_;
};

// Routes from every rank, whole and in chunks: counted once for all kinds and ranks.
class ProfileCounts {
 public:
  explicit ProfileCounts(const DispatchBenchOptions& options);
  // As a kind cuts them.
  const ops::RouteCounts& of(const ops::ChunkSplit& split) const {
    return split.num_chunks == 1 ? whole_ : in_chunks_;
  }

 private:
  ops::RouteCounts whole_, in_chunks_;
};

// The layer's tensors on one rank. Experts and tokens are the same for every kind.
struct BenchLayer {
  BenchLayer(const DispatchBenchOptions& options, int rank);

  // x as it was before a backward, which leaves dx in its place.
  void restore_x();
  void forward(comm::Communicator& group, const ops::DispatchOptions& kind);
  void backward(comm::Communicator& group, const ops::DispatchOptions& kind);
  // Some tokens' results against fp64 loops: the largest difference, relative to the largest result.
  double error_of_some_tokens() const;

  DispatchBenchOptions options;
  int rank;
  Counters counters;
  ops::OpContext context;
  at::Tensor x, y, dy, dweights;
  at::Tensor x_before;  // undefined in a dry run
  ops::PinnedRouting routing;
  ops::ExpertWeights weights;
  ops::ExpertGradients grads;
  ops::DispatchSaved saved;  // from a forward to its backward
};

}  // namespace steppe::cli
