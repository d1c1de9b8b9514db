#include "steppe/memory/tracking_allocator.h"

#include <c10/core/Allocator.h>
#include <malloc.h>
#include <sys/mman.h>

#include <climits>
#include <cstddef>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <new>

#include "steppe/base/error.h"
#include "steppe/memory/cuda_tracker.h"
#include "steppe/memory/scope.h"

namespace steppe::memory {
namespace {

constexpr size_t kAlignment = 64;
// Blocks from here on come from mmap under `return_freed_pages`; below, whole pages would be wasted.
constexpr size_t kMappedBytes = 64 << 10;

bool map_large_blocks = false;

// A step asks for the same large blocks again and again. Taken from the kernel each time, they cost a page
// fault per 4 KiB: a tenth of a small model's step.
void keep_freed_pages() {
  mallopt(M_MMAP_MAX, 0);
  mallopt(M_TRIM_THRESHOLD, INT_MAX);
  mallopt(M_TOP_PAD, 64 << 20);
}

struct Booking {
  Ledger* ledger;
  int64_t bytes;
  Category category;

  static Booking make(size_t bytes) {
    Booking booking{&current_ledger(), static_cast<int64_t>(bytes), current_category()};
    booking.ledger->allocated(booking.bytes, booking.category, Domain::kDevice);
    return booking;
  }
  void cancel() const { ledger->released(bytes, category, Domain::kDevice); }
};

// Lies in front of a CPU block's data.
struct alignas(kAlignment) Header {
  Booking booking;
  size_t mapped_bytes;  // of the mapping, or 0 when the block came from malloc
};
static_assert(sizeof(Header) == kAlignment);

void* take_block(size_t bytes, size_t* mapped_bytes) {
  const size_t total = bytes + sizeof(Header);
  void* block = nullptr;
  if (map_large_blocks && total >= kMappedBytes) {
    block = mmap(nullptr, total, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (block == MAP_FAILED) block = nullptr;
    *mapped_bytes = total;
  } else {
    if (total < bytes || posix_memalign(&block, kAlignment, total) != 0) block = nullptr;
    *mapped_bytes = 0;
  }
  STEPPE_CHECK(block != nullptr,
               "[memory] out of memory: cannot allocate {} bytes for category {}; {} bytes are live", bytes,
               category_name(current_category()), current_ledger().live_bytes());
  return block;
}

void release_cpu(void* data) {
  if (data == nullptr) return;
  Header* header = static_cast<Header*>(data) - 1;
  const Header copy = *header;
  if (copy.mapped_bytes != 0) {
    munmap(header, copy.mapped_bytes);
  } else {
    std::free(header);
  }
  copy.booking.cancel();
}

// Data and context are the same pointer, so that raw_deleter and copy-on-write storages work.
class CpuAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0) return {nullptr, nullptr, &release_cpu, c10::DeviceType::CPU};
    size_t mapped_bytes = 0;
    auto* header = static_cast<Header*>(take_block(bytes, &mapped_bytes));
    new (header) Header{Booking::make(bytes), mapped_bytes};
    void* data = header + 1;
    return {data, data, &release_cpu, c10::DeviceType::CPU};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release_cpu; }
  void copy_data(void* to, const void* from, size_t count) const override {
    default_copy_data(to, from, count);
  }
};

void release_meta(void* context) {
  if (context == nullptr) return;
  const std::unique_ptr<Booking> booking(static_cast<Booking*>(context));
  booking->cancel();
}

// No data; the booking is the context.
class MetaAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0) return {nullptr, nullptr, &release_meta, c10::DeviceType::Meta};
    return {nullptr, new Booking(Booking::make(bytes)), &release_meta, c10::DeviceType::Meta};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void*, const void*, size_t) const override {}
};

}  // namespace

void install_tracking_allocators(const AllocatorOptions& options) {
  static std::once_flag once;
  std::call_once(once, [&] {
    map_large_blocks = options.return_freed_pages;
    if (!options.return_freed_pages) keep_freed_pages();
    // Never destroyed: tensors with static lifetime are released after main. Priority: above any that a
    // library registers for itself.
    c10::SetAllocator(c10::DeviceType::CPU, new CpuAllocator, 255);
    c10::SetAllocator(c10::DeviceType::Meta, new MetaAllocator, 255);
    attach_cuda_tracker();
  });
}

}  // namespace steppe::memory
