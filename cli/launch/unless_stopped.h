// Work before the first step that may take minutes (the plan of a long run), and a signal that does not wait
// for its end.
#pragma once

#include <chrono>
#include <functional>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace steppe::launch {

struct StartingRank {
  int rank = 0, world_size = 1;
  std::function<int()> stop_signal;   // 0, or the signal that asks this rank to stop
  std::chrono::milliseconds timeout;  // comm.init_timeout: for all to be done once this rank is
};

// Runs `work` on a thread of its own while this one looks for a signal, its own or another rank's, until
// every rank has done its work. Collective over all ranks, once per store. Returns 0 when all have, on every
// rank; the same signal on every rank otherwise, and then `work` may still be running: the process must leave
// by _exit. Rethrows what `work` throws; RuntimeFailure when others are not done in time.
int run_unless_stopped(const std::function<void()>& work, c10d::Store& store, const StartingRank& self);

}  // namespace steppe::launch
