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
// loopback interface when the master address is local. `timeout` bounds every wait.
Groups make_groups(const layout::RankLayout& layout, const c10::intrusive_ptr<c10d::Store>& store,
                   std::chrono::milliseconds timeout, bool cuda);

// The dry run's: no process, no peer, no transfer.
Groups make_shape_only_groups(const layout::RankLayout& layout);

}  // namespace steppe::comm
