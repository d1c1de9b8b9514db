#include "steppe/comm/rank_threads.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <vector>

#include "steppe/comm/connection_lost.h"
#include "steppe/memory/scope.h"

namespace steppe::comm {
namespace {

struct Progress {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<bool> done;
  int num_done = 0;
  std::exception_ptr first_failure, first_connection_lost;
};

// A rank that fails takes its connections along before its exception arrives here, so that a peer's complaint
// may come first.
void note_failure(Progress& progress, const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const ConnectionLost&) {
    if (!progress.first_connection_lost) progress.first_connection_lost = failure;
  } catch (...) {
    if (!progress.first_failure) progress.first_failure = failure;
  }
}

[[noreturn]] void abort_unfinished(const Progress& progress, std::chrono::seconds timeout) {
  std::string ranks;
  for (size_t rank = 0; rank < progress.done.size(); ++rank) {
    if (!progress.done[rank]) ranks += fmt::format(" {}", rank);
  }
  std::fprintf(stderr, "[rank_threads] still running after %lld s: ranks%s\n",
               static_cast<long long>(timeout.count()), ranks.c_str());
  std::abort();
}

}  // namespace

void run_ranks(int world_size, const std::function<void(int, const c10::intrusive_ptr<c10d::Store>&)>& run,
               std::chrono::seconds timeout) {
  const c10::intrusive_ptr<c10d::Store> store = c10::make_intrusive<c10d::HashStore>();
  store->setTimeout(timeout);
  Progress progress;
  progress.done.resize(static_cast<size_t>(world_size));
  const auto rank_main = [&](int rank) {
    auto* const ledger = new memory::Ledger;  // never destroyed: blocks keep a pointer to it
    std::exception_ptr failure;
    {
      memory::LedgerBinding binding(*ledger);
      at::set_num_threads(1);
      try {
        run(rank, store);
      } catch (...) {
        failure = std::current_exception();
      }
    }
    std::lock_guard lock(progress.mutex);
    if (failure) note_failure(progress, failure);
    progress.done[static_cast<size_t>(rank)] = true;
    ++progress.num_done;
    progress.changed.notify_all();
  };
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world_size; ++rank) threads.emplace_back(rank_main, rank);
  {
    std::unique_lock lock(progress.mutex);
    const auto all_done = [&] { return progress.num_done == world_size; };
    if (!progress.changed.wait_for(lock, timeout, all_done)) abort_unfinished(progress, timeout);
  }
  for (std::thread& thread : threads) thread.join();
  if (progress.first_failure) std::rethrow_exception(progress.first_failure);
  if (progress.first_connection_lost) std::rethrow_exception(progress.first_connection_lost);
}

}  // namespace steppe::comm
