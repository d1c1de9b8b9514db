#include "steppe/base/error.h"
#include "steppe/base/stream_backend.h"

namespace steppe {

std::unique_ptr<StreamBackend> make_cuda_backend(int device) {
  throw RuntimeFailure(fmt::format(
      "[stream] asked for a stream of CUDA device {}, but Steppe was built without CUDA", device));
}

std::unique_ptr<StreamBackend> make_borrowed_cuda_backend(int device, void*) {
  return make_cuda_backend(device);
}

}  // namespace steppe
