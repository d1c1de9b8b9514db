#include <cuda_runtime_api.h>

#include "steppe/memory/pinned_memory.h"

namespace steppe::memory {

void* take_pinned(int64_t bytes, std::string* why) {
  void* memory = nullptr;
  const cudaError_t error = cudaHostAlloc(&memory, static_cast<size_t>(bytes), cudaHostAllocPortable);
  if (error == cudaSuccess) return memory;
  *why = cudaGetErrorString(error);
  cudaGetLastError();  // or the next launch would be blamed
  return nullptr;
}

void release_pinned(void* memory) noexcept {
  cudaFreeHost(memory);
}

}  // namespace steppe::memory
