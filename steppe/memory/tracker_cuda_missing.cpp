#include "steppe/memory/cuda_tracker.h"

namespace steppe::memory {

void attach_cuda_tracker() {}

}  // namespace steppe::memory
