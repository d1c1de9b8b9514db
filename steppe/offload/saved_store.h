// What a micro-batch's layers keep from their forward to their recomputation: their inputs ("boundaries"),
// and attention outputs where these are kept. On the device, or in host memory with two copies on the way
// (SCO).
//
// Program, at fixed points so that peaks are facts and not races. H: kept in host memory.
//
//   forward of layer l         save(l, …)      H: its copy to the host starts, beside the layer's arithmetic
//     at its end               end_forward(l)  H: what layer l-1 saved leaves the device, its copy waited for
//   behind the last layer      end_forward()   H: what is left leaves the device
//   in front of the backward   prefetch(L-1)   H: room on the device, and the copy back starts
//   backward of layer l        restore(l, …)   H: the copy back is waited for; the caller owns the tensor
//     behind that              prefetch(l-1)   H: travels while layer l works
//
// So at most two layers' restored tensors are on the device: the one at work and the one on its way. The host
// range is free again when its copy back was waited for. Bits are those of the saved tensor. Allocates
// restored tensors in the category they are saved under. No host sync on CUDA: waiting is the compute
// stream's. On `meta` the same ranges and allocations, no copy.
//
// Errors of a copy surface where it is waited for. On every way out, exceptions included, the destructor
// waits until no copy is under way, and leaves nothing behind in the arenas.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <vector>

#include "steppe/base/stream.h"
#include "steppe/memory/host_arena.h"

namespace steppe::offload {

// What can be kept of a layer.
enum class SavedName : uint8_t { kBoundary, kAttentionOutput, kAttentionLogSumExp };
inline constexpr int kNumSavedNames = 3;

enum class Placement : uint8_t {
  kDevice,
  kHostIfRoom,  // on the device when the arena has no room
  kHost,        // ValueError when the arena has no room
};

// The step's streams.
struct CopyStreams {
  Stream& compute;
  Stream& to_device;
  Stream& to_host;
};

// Host memory, shared by micro-batches.
struct SavedArenas {
  memory::HostArena& boundaries;
  memory::HostArena& attention_outputs;
};

class SavedStore {
 public:
  // Streams and arenas outlive the store.
  SavedStore(int64_t num_layers, CopyStreams streams, SavedArenas arenas);
  ~SavedStore();
  SavedStore(const SavedStore&) = delete;
  SavedStore& operator=(const SavedStore&) = delete;

  // x is contiguous, and is not written any more. Category: what the innermost scope says; a restored tensor
  // has the same.
  void save(int64_t layer, SavedName name, at::Tensor x, Placement placement);
  void end_forward(int64_t layer);
  void end_forward();
  // Nothing for a layer below 0.
  void prefetch(int64_t layer);
  // Undefined where nothing was saved.
  at::Tensor restore(int64_t layer, SavedName name);

  // Whether it was sent to the host; holds until it is restored.
  bool is_on_host(int64_t layer, SavedName name) const { return slot(layer, name).range.bytes > 0; }

 private:
  struct Slot {
    at::Tensor device;        // saved and not yet released, or on its way back, or kept here
    memory::HostRange range;  // bytes > 0: on the host
    Event copied;             // the copy under way: out, then back
    bool leaving = false;     // device is to be released when `copied` is past
    std::vector<int64_t> sizes;
    at::ScalarType type = at::kFloat;
    at::Device where{at::kCPU};
    memory::Category category = memory::Category::kUntagged;
  };
  using Layer = std::array<Slot, kNumSavedNames>;
  const Slot& slot(int64_t layer, SavedName name) const { return layers_[layer][static_cast<size_t>(name)]; }
  memory::HostArena& arena_of(size_t name) const {
    return name == static_cast<size_t>(SavedName::kBoundary) ? arenas_.boundaries : arenas_.attention_outputs;
  }
  void release_left(Layer& layer);
  void start_return(Slot& slot, SavedName name);
  bool copies_may_be_under_way() const;

  std::vector<Layer> layers_;
  CopyStreams streams_;
  SavedArenas arenas_;
};

}  // namespace steppe::offload
