// Host memory for what leaves the device: taken once, in its exact size, and handed out in ranges. PyTorch's
// pinned allocator would round each up to a power of two, and die where the system has no more to pin.
//
// Pinned where the copies come from CUDA; pageable, with one warning, where pinning fails. On `meta` the
// bookkeeping alone: ranges, ledger, no memory. All of its bytes are booked as Domain::kHost from the
// beginning, in the category given.
//
// Not thread-safe: the rank's own thread takes and gives back. Ranges are multiples of 64 bytes. The owner
// waits for the copies of a range before giving it back.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "steppe/memory/category.h"

namespace steppe::memory {

class Ledger;

struct HostRange {
  int64_t offset = 0;
  int64_t bytes = 0;
};

struct HostArenaOptions {
  std::string name;  // for messages: "offload.host_budget"
  Category category = Category::kUntagged;
  at::Device device{at::kCPU};  // the other end of the copies
  bool pin = true;              // asks for pinned memory; on CUDA only
  std::function<void(const std::string& warning)> warn = [](const std::string&) {};
};

class HostArena {
 public:
  static constexpr int64_t kAlignment = 64;
  static int64_t aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

  // RuntimeFailure when the host has not got that much.
  HostArena(int64_t bytes, HostArenaOptions options);
  // Every range was given back, or nothing copies to or from it any more.
  ~HostArena();
  HostArena(const HostArena&) = delete;
  HostArena& operator=(const HostArena&) = delete;

  int64_t bytes() const { return bytes_; }
  int64_t bytes_in_use() const { return in_use_; }
  int64_t largest_bytes_in_use() const { return largest_in_use_; }
  bool is_pinned() const { return pinned_; }

  // Whether take() would succeed.
  bool has_room_for(int64_t bytes) const;
  // The lowest range that is free. ValueError when there is none.
  HostRange take(int64_t bytes);
  void give_back(const HostRange& range);

  // The memory of a range; null on `meta`.
  void* data(const HostRange& range) const;
  // The same as a tensor that owns nothing, on the CPU or on `meta`; the arena must outlive it.
  at::Tensor tensor(const HostRange& range, at::IntArrayRef sizes, at::ScalarType type) const;

 private:
  using Free = std::map<int64_t, int64_t>;  // offset → bytes, neighbours merged
  Free::const_iterator first_fit(int64_t bytes) const;
  void take_memory();
  void release_memory() noexcept;

  HostArenaOptions options_;
  int64_t bytes_;
  Ledger* ledger_;
  void* memory_ = nullptr;
  bool pinned_ = false;
  Free free_;
  int64_t in_use_ = 0, largest_in_use_ = 0;
};

}  // namespace steppe::memory
