// Communication between GPUs: c10d's NCCL process group for tensors, and a host communicator for integers.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "steppe/comm/communicator.h"

namespace steppe::comm {

// `host` is the same group among CPUs; name, rank and size are taken from it. Tensors are on the current CUDA
// device. wait() makes the current stream wait, not the host; a failure or a timeout is noticed by the
// process group's watchdog. Throws ValueError in a build without CUDA.
std::unique_ptr<Communicator> make_nccl_communicator(std::unique_ptr<Communicator> host,
                                                     const c10::intrusive_ptr<c10d::Store>& store,
                                                     std::chrono::milliseconds timeout);

}  // namespace steppe::comm
