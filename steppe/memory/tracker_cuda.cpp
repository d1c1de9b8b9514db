#include <c10/core/AllocatorConfig.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>

#include <cstdint>
#include <mutex>
#include <unordered_map>

#include "steppe/memory/cuda_tracker.h"
#include "steppe/memory/scope.h"

namespace steppe::memory {
namespace {

struct Block {
  Ledger* ledger;
  int64_t bytes;
  Category category;
};

struct Blocks {
  std::mutex mutex;  // innermost: taken under the caching allocator's lock, takes nothing but the ledger's
  std::unordered_map<uint64_t, Block> by_address;
};

// Called on the allocating or releasing thread, so scopes and bindings hold. An address is not handed out
// again before its FREE_COMPLETED, which follows FREE_REQUESTED.
void on_trace(Blocks& blocks, const c10::CachingDeviceAllocator::TraceEntry& entry) {
  using Entry = c10::CachingDeviceAllocator::TraceEntry;
  const auto address = static_cast<uint64_t>(entry.addr_);
  if (entry.action_ == Entry::ALLOC) {
    const Block block{&current_ledger(), static_cast<int64_t>(entry.size_), current_category()};
    std::lock_guard lock(blocks.mutex);
    blocks.by_address[address] = block;
    block.ledger->allocated(block.bytes, block.category, Domain::kDevice);
  } else if (entry.action_ == Entry::FREE_REQUESTED) {
    std::lock_guard lock(blocks.mutex);
    const auto found = blocks.by_address.find(address);
    if (found == blocks.by_address.end()) return;  // allocated before the tracker was attached
    const Block block = found->second;
    blocks.by_address.erase(found);
    block.ledger->released(block.bytes, block.category, Domain::kDevice);
  }
}

}  // namespace

void attach_cuda_tracker() {
  const int num_devices = c10::cuda::device_count();
  if (num_devices == 0) return;
  // Tensors of many sizes come and go: in segments that cannot grow, the room between them would be lost.
  if (c10::CachingAllocator::getAllocatorSettings().empty())
    c10::CachingAllocator::setAllocatorSettings("expandable_segments:True");
  // The tracker attaches to the per-device allocators that exist: make them first. No context is created.
  c10::cuda::CUDACachingAllocator::init(num_devices);
  static Blocks* const blocks = new Blocks;  // never destroyed, like the allocator that calls back
  c10::cuda::CUDACachingAllocator::attachAllocatorTraceTracker(
      [](const auto& entry) { on_trace(*blocks, entry); });
}

}  // namespace steppe::memory
