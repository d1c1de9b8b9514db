// Everything in a checkpoint against its checksums.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "steppe/checkpoint/native_manifest.h"

namespace steppe::checkpoint {

struct Verification {
  int64_t num_files = 0, num_blocks = 0, size_bytes = 0;  // that were read
  std::vector<std::string> faults;                        // one per file; empty: all is well
};

// Reads every block of every shard of the checkpoint in `folder`, and holds the shards' headers against the
// manifest. Throws nothing for a damaged shard: all of them are listed.
Verification verify(const std::string& folder, const Manifest& manifest);

}  // namespace steppe::checkpoint
