#include <cuda_runtime_api.h>

#include <exception>
#include <utility>

#include "steppe/base/error.h"
#include "steppe/base/stream_backend.h"

namespace steppe {
namespace {

void check(cudaError_t error, const char* call) {
  if (error != cudaSuccess) cudaGetLastError();  // or the next launch would be blamed
  STEPPE_CHECK(error == cudaSuccess, "[stream] {} failed: {}", call, cudaGetErrorString(error));
}

// The calling thread's device, for as long as this lives. Nothing is set that is set already.
class OnDevice {
 public:
  explicit OnDevice(int device) : device_(device) {
    check(cudaGetDevice(&before_), "cudaGetDevice");
    if (before_ != device) check(cudaSetDevice(device), "cudaSetDevice");
  }
  ~OnDevice() {
    if (before_ != device_) cudaSetDevice(before_);
  }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  int device_, before_ = 0;
};

class CudaEvent final : public EventState {
 public:
  CudaEvent(int device, cudaStream_t stream) {
    const OnDevice guard(device);
    check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "cudaEventCreate");
    const cudaError_t recorded = cudaEventRecord(event_, stream);
    if (recorded != cudaSuccess) cudaEventDestroy(event_);
    check(recorded, "cudaEventRecord");
  }
  ~CudaEvent() override { cudaEventDestroy(event_); }

  void wait() override { check(cudaEventSynchronize(event_), "cudaEventSynchronize"); }
  bool done() const noexcept override {
    const cudaError_t error = cudaEventQuery(event_);
    if (error != cudaSuccess)
      cudaGetLastError();  // "not ready" counts as one: the next launch would be blamed
    return error != cudaErrorNotReady;
  }
  cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

class CudaBackend final : public StreamBackend {
 public:
  CudaBackend(int device, cudaStream_t stream, bool owned)
      : device_(device), stream_(stream), owned_(owned) {}
  ~CudaBackend() override {
    if (!owned_) return;
    drain();
    cudaStreamDestroy(stream_);
  }

  Stream::Kind kind() const override { return Stream::Kind::kCuda; }
  void enqueue(Stream::Work work) override {
    const OnDevice guard(device_);
    work(stream_);
  }
  void copy(void* to, const void* from, size_t bytes) override {
    const OnDevice guard(device_);
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_), "cudaMemcpyAsync");
  }
  std::shared_ptr<EventState> record() override { return std::make_shared<CudaEvent>(device_, stream_); }
  void wait(const std::shared_ptr<EventState>& event) override {
    const auto* cuda = dynamic_cast<const CudaEvent*>(event.get());
    if (cuda == nullptr) return event->wait();
    const OnDevice guard(device_);
    check(cudaStreamWaitEvent(stream_, cuda->get(), 0), "cudaStreamWaitEvent");
  }
  // A borrowed stream may be the default one, which is the current device's.
  void synchronize() override {
    const OnDevice guard(device_);
    check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
  }
  void drain() noexcept override {
    try {
      synchronize();
    } catch (const std::exception&) {  // dropped: another one is on its way
    }
  }

 private:
  int device_;
  cudaStream_t stream_;
  bool owned_;
};

}  // namespace

std::unique_ptr<StreamBackend> make_cuda_backend(int device) {
  const OnDevice guard(device);
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
  return std::make_unique<CudaBackend>(device, stream, /*owned=*/true);
}

std::unique_ptr<StreamBackend> make_borrowed_cuda_backend(int device, void* cuda_stream) {
  return std::make_unique<CudaBackend>(device, static_cast<cudaStream_t>(cuda_stream), /*owned=*/false);
}

}  // namespace steppe
