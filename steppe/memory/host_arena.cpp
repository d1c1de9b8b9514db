#include "steppe/memory/host_arena.h"

#include <c10/core/Storage.h>
#include <c10/core/TensorImpl.h>
#include <sys/mman.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "steppe/base/error.h"
#include "steppe/memory/pinned_memory.h"
#include "steppe/memory/scope.h"

namespace steppe::memory {

HostArena::HostArena(int64_t bytes, HostArenaOptions options)
    : options_(std::move(options)), bytes_(bytes), ledger_(&current_ledger()) {
  STEPPE_CHECK_VALUE(bytes >= 0, "[host_arena] {}: bytes must be at least 0, got {}", options_.name, bytes);
  if (bytes == 0) return;
  if (!options_.device.is_meta()) take_memory();
  free_.emplace(0, bytes);
  ledger_->allocated(bytes_, options_.category, Domain::kHost);
}

HostArena::~HostArena() {
  if (bytes_ == 0) return;
  release_memory();
  ledger_->released(bytes_, options_.category, Domain::kHost);
}

void HostArena::take_memory() {
  const auto size = static_cast<size_t>(bytes_);
  if (options_.device.is_cuda() && options_.pin) {
    std::string why;
    memory_ = take_pinned(bytes_, &why);
    pinned_ = memory_ != nullptr;
    if (pinned_) return;
    options_.warn(fmt::format(
        "[host_arena] {}: {} bytes cannot be pinned ({}); they are pageable now, and copies wait for the CPU",
        options_.name, bytes_, why));
  }
  memory_ = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory_ == MAP_FAILED) memory_ = nullptr;
  STEPPE_CHECK(memory_ != nullptr, "[host_arena] {}: the host has not got {} bytes", options_.name, bytes_);
}

void HostArena::release_memory() noexcept {
  if (memory_ == nullptr) return;
  if (pinned_) {
    release_pinned(memory_);
  } else {
    munmap(memory_, static_cast<size_t>(bytes_));
  }
}

HostArena::Free::const_iterator HostArena::first_fit(int64_t bytes) const {
  return std::find_if(free_.begin(), free_.end(), [&](const auto& range) { return range.second >= bytes; });
}

bool HostArena::has_room_for(int64_t bytes) const {
  return bytes == 0 || first_fit(aligned(bytes)) != free_.end();
}

HostRange HostArena::take(int64_t bytes) {
  STEPPE_CHECK_VALUE(bytes >= 0, "[host_arena] {}: bytes must be at least 0, got {}", options_.name, bytes);
  if (bytes == 0) return {};
  const int64_t wanted = aligned(bytes);
  const auto found = first_fit(wanted);
  STEPPE_CHECK_VALUE(found != free_.end(),
                     "[host_arena] {}: {} bytes must fit into an arena of {}, of which {} are in use",
                     options_.name, wanted, bytes_, in_use_);
  const auto [offset, available] = *found;
  free_.erase(found);
  if (available > wanted) free_.emplace(offset + wanted, available - wanted);
  in_use_ += wanted;
  largest_in_use_ = std::max(largest_in_use_, in_use_);
  return {offset, wanted};
}

void HostArena::give_back(const HostRange& range) {
  if (range.bytes == 0) return;
  const auto next = free_.lower_bound(range.offset);
  const bool apart =
      (next == free_.end() || range.offset + range.bytes <= next->first) &&
      (next == free_.begin() || std::prev(next)->first + std::prev(next)->second <= range.offset);
  STEPPE_ASSERT(apart && range.offset + range.bytes <= bytes_,
                "[host_arena] {}: the range [{}, {}) was given back twice, or is none of this arena",
                options_.name, range.offset, range.offset + range.bytes);
  auto merged = free_.emplace_hint(next, range.offset, range.bytes);
  if (next != free_.end() && merged->first + merged->second == next->first) {
    merged->second += next->second;
    free_.erase(next);
  }
  if (merged != free_.begin()) {
    const auto before = std::prev(merged);
    if (before->first + before->second == merged->first) {
      before->second += merged->second;
      free_.erase(merged);
    }
  }
  in_use_ -= range.bytes;
}

void* HostArena::data(const HostRange& range) const {
  return memory_ == nullptr ? nullptr : static_cast<std::byte*>(memory_) + range.offset;
}

at::Tensor HostArena::tensor(const HostRange& range, at::IntArrayRef sizes, at::ScalarType type) const {
  const auto numel = c10::multiply_integers(sizes);
  const auto bytes = numel * static_cast<int64_t>(c10::elementSize(type));
  STEPPE_CHECK_VALUE(bytes <= range.bytes,
                     "[host_arena] {}: a tensor of {} bytes must fit into a range of {}", options_.name,
                     bytes, range.bytes);
  const bool meta = options_.device.is_meta();
  const auto device = at::Device(meta ? at::kMeta : at::kCPU);
  const auto key = meta ? c10::DispatchKey::Meta : c10::DispatchKey::CPU;
  c10::Storage storage(c10::Storage::use_byte_size_t(), static_cast<size_t>(bytes),
                       c10::DataPtr(data(range), device), /*allocator=*/nullptr, /*resizable=*/false);
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(key),
                                                         c10::scalarTypeToTypeMeta(type));
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  return tensor;
}

}  // namespace steppe::memory
