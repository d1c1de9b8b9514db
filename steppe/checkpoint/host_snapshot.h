// A copy in host memory of what a rank saves, so that training may go on while it is written. The memory is
// taken once, in the exact size, and kept from save to save; it is booked to the ledger's host domain as
// staging.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "steppe/checkpoint/native_shard.h"
#include "steppe/memory/ledger.h"

namespace steppe::checkpoint {

class HostSnapshot {
 public:
  // Bytes that a snapshot of these units takes.
  static int64_t size_for(const std::vector<UnitState>& units);

  // RuntimeFailure when the system has no such memory.
  explicit HostSnapshot(int64_t size_bytes);
  ~HostSnapshot();
  HostSnapshot(const HostSnapshot&) = delete;
  HostSnapshot& operator=(const HostSnapshot&) = delete;

  // The same units, with tensors of this snapshot; good until the next take(). They must fit.
  std::vector<UnitState> take(const std::vector<UnitState>& units);

 private:
  std::byte* bytes_ = nullptr;
  int64_t size_bytes_;
  memory::Ledger& ledger_;
};

// Bytes of host memory that the asynchronous writer may take on a node when nobody says: half of what is
// available now. 0 where the system does not tell.
int64_t automatic_host_budget();

}  // namespace steppe::checkpoint
