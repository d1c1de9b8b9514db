// For tests: the ranks of a run as threads of one process, over Gloo.
#pragma once

#include <chrono>
#include <functional>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace steppe::comm {

// Calls `run(rank, store)` on `world_size` threads, which meet at one in-process store. Each thread computes
// with one thread of its own, and has a ledger bound (memory::current_ledger()), which lives for good:
// tensors may outlive the call. Returns when all are done; rethrows the exception of the rank that failed
// first, a lost connection only when nothing else failed. Aborts the process, naming the ranks, when some are
// still running after `timeout`: a thread cannot be stopped.
void run_ranks(int world_size,
               const std::function<void(int rank, const c10::intrusive_ptr<c10d::Store>& store)>& run,
               std::chrono::seconds timeout = std::chrono::seconds(600));

}  // namespace steppe::comm
