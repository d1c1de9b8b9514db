// The key-value store over which ranks find one another.
#pragma once

#include <chrono>
#include <cstdint>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "cli/launch/environment.h"

namespace steppe::launch {

// A store that all ranks of the job share, once all of them have arrived. Under an agent's store (torchrun,
// --ranks) every rank is a client; otherwise rank 0 listens on MASTER_PORT, on all interfaces. One rank
// alone, without an agent, gets an in-process store and opens no port. Keys are private to Steppe and to
// this attempt (torchrun keeps its store across restarts).
//
// Collective over all ranks. Takes at most `init_timeout` and a few seconds, and throws RuntimeFailure that
// names the port when it is in use, the address when nobody answers there, the ranks that have not arrived,
// two processes that claim the same rank, or the failure that another rank reported meanwhile.
c10::intrusive_ptr<c10d::Store> make_store(const LaunchEnvironment& environment,
                                           std::chrono::milliseconds init_timeout);

// A store for the ranks of this machine, served by the calling process on a free port of the loopback
// address: what `--ranks` gives its children. Its keys are those that make_store's clients see.
struct LocalStore {
  c10::intrusive_ptr<c10d::Store> store;
  std::uint16_t port = 0;
};
LocalStore serve_local_store();

}  // namespace steppe::launch
