#include "steppe/comm/shared_pipe.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/futex.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <new>
#include <random>
#include <utility>

#include "steppe/base/error.h"

namespace steppe::comm {
namespace {

constexpr size_t kHeaderBytes = 4096;

long futex(std::atomic<std::uint32_t>& word, int operation, std::uint32_t value, const timespec* limit) {
  static_assert(sizeof(word) == sizeof(std::uint32_t));
  return ::syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), operation, value, limit, nullptr, 0);
}

std::uint64_t random_nonce() {
  std::random_device device;
  return std::uint64_t{device()} << 32 | device();
}

}  // namespace

void Bell::ring() {
  count_.fetch_add(1);
  if (sleepers_.load() != 0) futex(count_, FUTEX_WAKE, INT_MAX, nullptr);
}

void Bell::sleep(std::uint32_t seen, std::chrono::milliseconds limit) {
  const timespec time{.tv_sec = limit.count() / 1000, .tv_nsec = limit.count() % 1000 * 1'000'000};
  sleepers_.fetch_add(1);
  futex(count_, FUTEX_WAIT, seen, &time);
  sleepers_.fetch_sub(1);
}

size_t Pipe::write(const std::byte* from, size_t size) {
  const std::uint64_t written = written_.load(std::memory_order_relaxed);
  const size_t take = std::min<size_t>(size, kBytes - (written - read_.load(std::memory_order_acquire)));
  const size_t at = written % kBytes, first = std::min(take, kBytes - at);
  std::memcpy(bytes_ + at, from, first);
  std::memcpy(bytes_, from + first, take - first);
  written_.store(written + take, std::memory_order_release);
  return take;
}

size_t Pipe::read(std::byte* into, size_t size) {
  const std::uint64_t read = read_.load(std::memory_order_relaxed);
  const size_t take = std::min<size_t>(size, written_.load(std::memory_order_acquire) - read);
  const size_t at = read % kBytes, first = std::min(take, kBytes - at);
  std::memcpy(into, bytes_ + at, first);
  std::memcpy(into + first, bytes_, take - first);
  read_.store(read + take);
  return take;
}

bool Pipe::want_room() {
  room_wanted_.store(true);
  return written_.load() - read_.load() < kBytes;
}

bool Pipe::reader_made_room() {
  return room_wanted_.load() && room_wanted_.exchange(false);
}

SharedSegment::SharedSegment(int num_pipes)
    : size_(kHeaderBytes + static_cast<size_t>(num_pipes) * sizeof(Pipe)) {
  file_ = ::memfd_create("steppe", MFD_CLOEXEC);
  STEPPE_CHECK(file_ >= 0 && ::ftruncate(file_, static_cast<off_t>(size_)) == 0,
               "[comm] cannot make shared memory of {} bytes: {}", size_, std::strerror(errno));
  ::flock(file_, LOCK_EX | LOCK_NB);
  map();
  new (memory_) Header;
  header().nonce = random_nonce();
  for (int rank = 0; rank < num_pipes; ++rank) new (&pipe_from(rank)) Pipe;
  address_ = fmt::format("{} {} {}", ::getpid(), file_, header().nonce);
}

SharedSegment::SharedSegment(int num_pipes, const std::string& address)
    : address_(address), size_(kHeaderBytes + static_cast<size_t>(num_pipes) * sizeof(Pipe)) {
  int process = 0, file = 0;
  unsigned long long nonce = 0;
  STEPPE_CHECK(std::sscanf(address.c_str(), "%d %d %llu", &process, &file, &nonce) == 3,
               "[comm] \"{}\" is no address of shared memory", address);
  const auto path = fmt::format("/proc/{}/fd/{}", process, file);
  file_ = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  STEPPE_CHECK(file_ >= 0, "[comm] cannot open a peer's shared memory {}: {}", path, std::strerror(errno));
  try {
    STEPPE_CHECK(::lseek(file_, 0, SEEK_END) == static_cast<off_t>(size_),
                 "[comm] {} is not the expected peer's shared memory", path);
    map();
    STEPPE_CHECK(header().nonce == nonce, "[comm] {} is not the expected peer's shared memory", path);
  } catch (...) {
    if (memory_ != nullptr) ::munmap(memory_, size_);
    ::close(file_);
    throw;
  }
}

SharedSegment::~SharedSegment() {
  ::munmap(memory_, size_);
  ::close(file_);
}

void SharedSegment::map() {
  void* const memory = ::mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0);
  STEPPE_CHECK(memory != MAP_FAILED, "[comm] cannot map shared memory of {} bytes: {}", size_,
               std::strerror(errno));
  memory_ = static_cast<std::byte*>(memory);
}

Pipe& SharedSegment::pipe_from(int rank) {
  return *reinterpret_cast<Pipe*>(memory_ + kHeaderBytes + static_cast<size_t>(rank) * sizeof(Pipe));
}

bool SharedSegment::owner_lives() {
  if (::flock(file_, LOCK_SH | LOCK_NB) != 0) return true;
  ::flock(file_, LOCK_UN);
  return false;
}

}  // namespace steppe::comm
