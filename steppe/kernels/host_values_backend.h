// A few host values to the device, as kernel parameters: no pinned memory, and nothing waits. No Torch
// header.
#pragma once

#include <cstdint>
#include <span>

namespace steppe::kernels::cuda {

// `place`: whose values they are, for the message of a launch that fails.
void put_host_values(int32_t* out, std::span<const int32_t> values, const char* place, void* stream);

}  // namespace steppe::kernels::cuda
