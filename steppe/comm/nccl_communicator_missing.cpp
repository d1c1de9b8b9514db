#include "steppe/base/error.h"
#include "steppe/comm/nccl_communicator.h"

namespace steppe::comm {

std::unique_ptr<Communicator> make_nccl_communicator(std::unique_ptr<Communicator>,
                                                     const c10::intrusive_ptr<c10d::Store>&,
                                                     std::chrono::milliseconds) {
  throw ValueError("[comm] this build has no CUDA, so no NCCL: ranks can only communicate on the CPU");
}

}  // namespace steppe::comm
