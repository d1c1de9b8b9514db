// Books blocks of PyTorch's CUDA caching allocator, whose own allocator cannot be replaced.
#pragma once

namespace steppe::memory {

// Requested sizes, not the rounded ones, are booked at allocation and at the request to free. Segments are
// made expandable, unless PyTorch's own variable (PYTORCH_ALLOC_CONF) says something about them. Does nothing
// in a build without CUDA, and where there is no CUDA device.
void attach_cuda_tracker();

}  // namespace steppe::memory
