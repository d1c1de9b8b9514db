// Says in the rank's ledger which chunk is worked on, so that a peak tells its chunk.
#pragma once

#include <fmt/format.h>

#include <cstdint>

#include "steppe/memory/scope.h"

namespace steppe::ops {

class ChunkMark {
 public:
  ChunkMark(int64_t chunk, int64_t num_chunks) {
    if (num_chunks > 1)
      memory::current_ledger().mark_part(fmt::format("chunk {} of {}", chunk + 1, num_chunks));
  }
  ~ChunkMark() { memory::current_ledger().mark_part({}); }
  ChunkMark(const ChunkMark&) = delete;
  ChunkMark& operator=(const ChunkMark&) = delete;
};

}  // namespace steppe::ops
