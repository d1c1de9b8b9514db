// Work that runs beside the caller's, in the order in which it was given: one type for a CUDA stream and for
// a thread of the CPU, so that the same program overlaps copies with arithmetic on both, and so that its
// order, its races and its errors are real, and tested, where there is no GPU.
//
//   kind     work given to enqueue()                          wait(event)
//   worker   runs on the stream's own thread                  the thread waits before what follows
//   cuda     is called at once, to issue to the CUDA stream   the stream waits; for a worker's event, the
//                                                             caller does
//   caller   is called at once, and runs                      the caller waits
//   inert    is not called: the dry run's bookkeeping         nothing
//
// The caller's own arithmetic is a stream too: `caller` on the CPU, the borrowed current stream on CUDA.
//
// Work owns nothing that must be released at a fixed point of the program: the owner holds buffers, and lets
// go of them after waiting for an event that was recorded behind their last use.
//
// Errors: what work throws on a worker (and what CUDA reports) surfaces where somebody waits: at the event,
// on every stream that waits for it, and at synchronize(). After an error a worker skips what it was given
// until synchronize() or drain() takes note of it.
//
// A stream is used by one thread at a time; events by any.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "steppe/base/counters.h"

namespace steppe {

struct EventState;
struct StreamBackend;

// A point in a stream's order. Copies are the same point. Without a stream: long past.
class Event {
 public:
  Event() = default;
  explicit Event(std::shared_ptr<EventState> state) : state_(std::move(state)) {}

  // The calling thread waits until all work before the point has run. Rethrows what that work threw.
  void wait() const;
  // Whether it has; never blocks, never throws.
  bool done() const;

 private:
  friend class Stream;
  std::shared_ptr<EventState> state_;
};

class Stream {
 public:
  enum class Kind { kWorker, kCuda, kCaller, kInert };
  // `cuda_stream`: a cudaStream_t to issue to, null on the CPU.
  using Work = std::function<void(void* cuda_stream)>;

  // A thread of its own; `name` (at most 15 characters) is what a debugger shows.
  static Stream worker(const std::string& name);
  // A new stream that does not wait for the default one. RuntimeFailure in a build without CUDA.
  static Stream cuda(int device);
  // Somebody else's cudaStream_t, which must outlive this.
  static Stream borrowed_cuda(int device, void* cuda_stream);
  static Stream caller();
  static Stream inert();

  // Waits until a stream of its own is empty, and drops its errors.
  ~Stream();
  Stream(Stream&&) noexcept;
  Stream& operator=(Stream&&) noexcept;

  Kind kind() const;
  void enqueue(Work work);
  // Between host and device, in either direction, or within one of them. An inert stream reads no pointer.
  void copy(void* to, const void* from, size_t bytes, LinkPurpose purpose);
  // Where copies are counted from now on, when they are given; null: nowhere.
  void count_copies_in(Tally<LinkPurpose>* bytes) { copied_ = bytes; }
  Event record();
  void wait(const Event& event);
  // The calling thread waits until the stream is empty. Rethrows the first error since the last call.
  void synchronize();
  // The same, and drops the error: for the way out of another one.
  void drain() noexcept;

 private:
  explicit Stream(std::unique_ptr<StreamBackend> backend);
  std::unique_ptr<StreamBackend> backend_;
  Tally<LinkPurpose>* copied_ = nullptr;
};

}  // namespace steppe
