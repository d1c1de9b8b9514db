// What stands behind a Stream and an Event; one file per kind.
#pragma once

#include <memory>
#include <string>

#include "steppe/base/stream.h"

namespace steppe {

struct EventState {
  EventState() = default;
  virtual ~EventState() = default;
  EventState(const EventState&) = delete;
  EventState& operator=(const EventState&) = delete;

  virtual void wait() = 0;
  virtual bool done() const noexcept = 0;
};

struct StreamBackend {
  StreamBackend() = default;
  virtual ~StreamBackend() = default;
  StreamBackend(const StreamBackend&) = delete;
  StreamBackend& operator=(const StreamBackend&) = delete;

  virtual Stream::Kind kind() const = 0;
  virtual void enqueue(Stream::Work work) = 0;
  virtual void copy(void* to, const void* from, size_t bytes) = 0;
  virtual std::shared_ptr<EventState> record() = 0;  // null: nothing to wait for
  virtual void wait(const std::shared_ptr<EventState>& event) = 0;
  virtual void synchronize() = 0;
  virtual void drain() noexcept = 0;
};

std::unique_ptr<StreamBackend> make_worker_backend(const std::string& name);
std::unique_ptr<StreamBackend> make_cuda_backend(int device);
std::unique_ptr<StreamBackend> make_borrowed_cuda_backend(int device, void* cuda_stream);

}  // namespace steppe
