#include "steppe/checkpoint/host_snapshot.h"

#include <ATen/ops/from_blob.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <string>

#include "steppe/base/error.h"
#include "steppe/memory/scope.h"

namespace steppe::checkpoint {
namespace {

constexpr int64_t kAlignment = 64;

int64_t aligned(int64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace

HostSnapshot::HostSnapshot(int64_t size_bytes) : size_bytes_(size_bytes), ledger_(memory::current_ledger()) {
  // Populated at once: page by page, the first copy would wait for the kernel longer than it copies.
  void* mapped = ::mmap(nullptr, static_cast<size_t>(size_bytes_), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  STEPPE_CHECK(mapped != MAP_FAILED,
               "[checkpoint] cannot take {} bytes of host memory for the asynchronous writer: {}",
               size_bytes_, std::strerror(errno));
  bytes_ = static_cast<std::byte*>(mapped);
  ledger_.allocated(size_bytes_, memory::Category::kStaging, memory::Domain::kHost);
}

HostSnapshot::~HostSnapshot() {
  ::munmap(bytes_, static_cast<size_t>(size_bytes_));
  ledger_.released(size_bytes_, memory::Category::kStaging, memory::Domain::kHost);
}

int64_t HostSnapshot::size_for(const std::vector<UnitState>& units) {
  int64_t total = 0;
  for (const auto& unit : units) {
    for (const auto& tensor : unit.tensors) total += aligned(static_cast<int64_t>(tensor.values.nbytes()));
  }
  return total;
}

std::vector<UnitState> HostSnapshot::take(const std::vector<UnitState>& units) {
  auto copies = units;
  int64_t at = 0;
  // A stream of its own: on the current one the copies would stand in line with the training step.
  c10::OptionalStreamGuard side_stream;
  for (auto& unit : copies) {
    for (auto& tensor : unit.tensors) {
      const auto bytes = static_cast<int64_t>(tensor.values.nbytes());
      STEPPE_ASSERT(bytes <= size_bytes_ - at, "[checkpoint] a snapshot of more than {} bytes", size_bytes_);
      if (tensor.values.is_cuda() && !side_stream.current_stream()) {
        const auto device = tensor.values.device();
        side_stream.reset_stream(c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device));
      }
      const auto copy = at::from_blob(bytes_ + at, {tensor.values.numel()}, tensor.values.scalar_type());
      copy.copy_(tensor.values);
      tensor.values = copy;
      at += aligned(bytes);
    }
  }
  return copies;
}

int64_t automatic_host_budget() {
  int64_t available = 0;
  std::ifstream stream("/proc/meminfo");
  for (std::string line; std::getline(stream, line);) {
    constexpr std::string_view kKey = "MemAvailable:";
    if (line.starts_with(kKey)) available = std::stoll(line.substr(kKey.size())) * 1024;
  }
  // A container's own limit, where there is one: the file says "max" otherwise.
  int64_t limit = 0, used = 0;
  std::ifstream limit_file("/sys/fs/cgroup/memory.max"), used_file("/sys/fs/cgroup/memory.current");
  if (limit_file >> limit && used_file >> used)
    available = std::min(available, std::max<int64_t>(0, limit - used));
  return available / 2;
}

}  // namespace steppe::checkpoint
