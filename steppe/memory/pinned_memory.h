// Pages that the CUDA driver has locked.
#pragma once

#include <cstdint>
#include <string>

namespace steppe::memory {

// Exactly `bytes`, or null with the reason in `why`.
void* take_pinned(int64_t bytes, std::string* why);
void release_pinned(void* memory) noexcept;

}  // namespace steppe::memory
