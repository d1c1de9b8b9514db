#include "steppe/base/stream.h"

#include <cstring>
#include <utility>

#include "steppe/base/error.h"
#include "steppe/base/stream_backend.h"

namespace steppe {
namespace {

// The calling thread: everything before a point has run when the point is named.
struct CallerBackend final : StreamBackend {
  Stream::Kind kind() const override { return Stream::Kind::kCaller; }
  void enqueue(Stream::Work work) override { work(nullptr); }
  void copy(void* to, const void* from, size_t bytes) override { std::memcpy(to, from, bytes); }
  std::shared_ptr<EventState> record() override { return nullptr; }
  void wait(const std::shared_ptr<EventState>& event) override { event->wait(); }
  void synchronize() override {}
  void drain() noexcept override {}
};

struct InertBackend final : StreamBackend {
  Stream::Kind kind() const override { return Stream::Kind::kInert; }
  void enqueue(Stream::Work) override {}
  void copy(void*, const void*, size_t) override {}
  std::shared_ptr<EventState> record() override { return nullptr; }
  void wait(const std::shared_ptr<EventState>&) override {}
  void synchronize() override {}
  void drain() noexcept override {}
};

}  // namespace

void Event::wait() const {
  if (state_) state_->wait();
}

bool Event::done() const {
  return !state_ || state_->done();
}

Stream::Stream(std::unique_ptr<StreamBackend> backend) : backend_(std::move(backend)) {}
Stream::~Stream() = default;
Stream::Stream(Stream&&) noexcept = default;
Stream& Stream::operator=(Stream&&) noexcept = default;

Stream Stream::worker(const std::string& name) {
  return Stream(make_worker_backend(name));
}
Stream Stream::cuda(int device) {
  return Stream(make_cuda_backend(device));
}
Stream Stream::borrowed_cuda(int device, void* cuda_stream) {
  return Stream(make_borrowed_cuda_backend(device, cuda_stream));
}
Stream Stream::caller() {
  return Stream(std::make_unique<CallerBackend>());
}
Stream Stream::inert() {
  return Stream(std::make_unique<InertBackend>());
}

Stream::Kind Stream::kind() const {
  return backend_->kind();
}
void Stream::enqueue(Work work) {
  STEPPE_ASSERT(work, "[stream] work must be callable");
  backend_->enqueue(std::move(work));
}
void Stream::copy(void* to, const void* from, size_t bytes, LinkPurpose purpose) {
  if (bytes == 0) return;
  if (copied_) copied_->add(purpose, static_cast<int64_t>(bytes));
  backend_->copy(to, from, bytes);
}
Event Stream::record() {
  return Event(backend_->record());
}
void Stream::wait(const Event& event) {
  if (event.state_) backend_->wait(event.state_);
}
void Stream::synchronize() {
  backend_->synchronize();
}
void Stream::drain() noexcept {
  backend_->drain();
}

}  // namespace steppe
