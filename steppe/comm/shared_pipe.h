// Memory that the processes of one machine share: per rank and group a segment with one pipe from each peer,
// and a bell that wakes whoever sleeps there. Memory files (memfd_create(2)) leave nothing behind, however a
// process ends, and are not bounded by the size of /dev/shm.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

namespace steppe::comm {

// Wakes sleepers of any process that maps it; futex(2). No wake-up is lost: whoever sleeps names the count
// that it saw before it looked for work.
class Bell {
 public:
  std::uint32_t count() const { return count_.load(std::memory_order_seq_cst); }
  // A system call only when somebody sleeps.
  void ring();
  // Until the count is no longer `seen`, or `limit` has passed, or for no reason.
  void sleep(std::uint32_t seen, std::chrono::milliseconds limit);

 private:
  std::atomic<std::uint32_t> count_{0};
  std::atomic<std::uint32_t> sleepers_{0};
};

// A stream of bytes from one writer to one reader.
class Pipe {
 public:
  static constexpr size_t kBytes = size_t{256} << 10;

  // Take what there is room for, or what has arrived, at most `size` bytes; give the number moved.
  size_t write(const std::byte* from, size_t size);
  size_t read(std::byte* into, size_t size);
  // The writer has found no room: true when there is some after all. Otherwise reader_made_room() will say
  // so, once.
  bool want_room();
  bool reader_made_room();
  bool empty() const { return written_.load() == read_.load(); }

 private:
  // Both only grow; each is written by one side.
  alignas(64) std::atomic<std::uint64_t> written_{0};
  alignas(64) std::atomic<std::uint64_t> read_{0};
  std::atomic<bool> room_wanted_{false};
  alignas(64) std::byte bytes_[kBytes];
};

// One rank's segment, mapped by its owner and by its peers.
class SharedSegment {
 public:
  // Makes the segment of a rank in a group of `num_pipes` ranks. Throws RuntimeFailure when the system
  // refuses.
  explicit SharedSegment(int num_pipes);
  // Maps a peer's. Throws RuntimeFailure when it cannot be reached: another machine or container, another
  // user.
  SharedSegment(int num_pipes, const std::string& address);
  ~SharedSegment();
  SharedSegment(const SharedSegment&) = delete;
  SharedSegment& operator=(const SharedSegment&) = delete;

  // What a peer needs to map it.
  const std::string& address() const { return address_; }
  Bell& bell() { return header().bell; }
  Pipe& pipe_from(int rank);
  // The owner says goodbye.
  void close() { header().closed = true; }
  bool closed() { return header().closed; }
  // Of a peer's segment: whether its owner's process still holds it. The kernel lets go for a process that
  // dies, in whatever way.
  bool owner_lives();

 private:
  struct Header {
    Bell bell;
    std::atomic<bool> closed{false};
    std::uint64_t nonce = 0;
  };
  Header& header() { return *reinterpret_cast<Header*>(memory_); }
  void map();

  std::string address_;
  size_t size_;
  int file_ = -1;
  std::byte* memory_ = nullptr;
};

}  // namespace steppe::comm
