// The inputs of a micro-batch's layers, from their forward to their recomputation. This store keeps all of
// them on the device; one that moves them to the host has the same calls at the same points of the program.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace steppe::offload {

class BoundaryStore {
 public:
  explicit BoundaryStore(int64_t num_layers) : boundaries_(num_layers) {}
  // After layer `layer` has been given its input.
  void save(int64_t layer, at::Tensor h_NH) { boundaries_[layer] = std::move(h_NH); }
  // Before layer `layer` is recomputed; the store lets go of it.
  at::Tensor restore(int64_t layer) { return std::move(boundaries_[layer]); }

 private:
  std::vector<at::Tensor> boundaries_;
};

}  // namespace steppe::offload
