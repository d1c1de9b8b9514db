// The communicators of one rank: one per purpose, so that weight prefetch, dispatch and control traffic have
// queues of their own and never wait for each other's transfers.
#pragma once

#include <chrono>
#include <memory>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "steppe/comm/communicator.h"
#include "steppe/layout/layout.h"

namespace steppe::comm {

struct Groups {
  std::unique_ptr<Communicator> weights;          // all W: gathers of dense weights
  std::unique_ptr<Communicator> gradients;        // all W: reduce-scatter of dense gradients
  std::unique_ptr<Communicator> sequence;         // D
  std::unique_ptr<Communicator> expert;           // E_p: dispatch and combine
  std::unique_ptr<Communicator> expert_replicas;  // W/E_p
  std::unique_ptr<Communicator> vocab;            // P
  std::unique_ptr<Communicator> vocab_replicas;   // W/P
  std::unique_ptr<Communicator> control;          // all W, host values only
};

// Collective over all W ranks of the store. Groups of size 1 make no process group. On a CPU: Gloo, over the
// loopback interface when all ranks share one machine's network, else over the interface of the host's name.
// With `cuda`: NCCL for tensors on the current CUDA device, which the caller has set; host values go over
// Gloo. A communicator's name is its field's name, with the index of the group where there are several:
// "expert.0". `timeout` bounds every wait, the connecting included. Throws RuntimeFailure naming the group
// and this rank when the ranks cannot connect. May be called again on the same store, by all ranks equally
// often.
Groups make_groups(const layout::RankLayout& layout, const c10::intrusive_ptr<c10d::Store>& store,
                   std::chrono::milliseconds timeout, bool cuda);

// The dry run's: no process, no peer, no transfer.
Groups make_shape_only_groups(const layout::RankLayout& layout);

}  // namespace steppe::comm
