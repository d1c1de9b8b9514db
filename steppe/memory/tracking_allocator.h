// The allocator hook: replaces LibTorch's CPU and meta allocators by ones that book every block to the
// calling thread's ledger with the category of the innermost scope. A block carries a 64-byte header (ledger,
// size, category) before 64-byte aligned data, so that it can be released on any thread. Zero-size
// allocations are null and not booked. Alignment is 64 bytes; the requested size is what is booked. On CUDA
// the caching allocator's trace hook books requested sizes (tracker_cuda.cpp).
//
// Freed pages stay with the process unless `return_freed_pages` says otherwise: fast, but RSS then stays at
// its high-water mark.
//
// Untracked by nature: from_blob, pinned memory of PyTorch, operator new inside libraries.
#pragma once

#include <cstdint>

namespace steppe::memory {

// Must be called first in main: earlier tensors stay untracked for good. Calling it again does nothing.
// `return_freed_pages`: large blocks come from mmap and go back at once, so that RSS follows the ledger;
// slower, for tests of honesty.
struct AllocatorOptions {
  bool return_freed_pages = false;
};
void install_tracking_allocators(const AllocatorOptions& options = {});

// Resident bytes of this process as the kernel counts them (VmRSS), and their anonymous part (RssAnon).
int64_t resident_bytes();
int64_t resident_anonymous_bytes();

}  // namespace steppe::memory
