// `--ranks R`: this process becomes the parent of R ranks on this machine.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

namespace steppe::launch {

struct SpawnOptions {
  int ranks = 1;
  std::vector<std::string> arguments;  // of the children, without the program's name and without --ranks
  std::string program;                 // empty: this program itself
  std::chrono::milliseconds kill_grace{5000};     // between SIGTERM and SIGKILL, once a rank has failed
  std::function<void(const std::string&)> print;  // empty: stderr
};

// Starts the ranks with the variables that torchrun would set, serves their store on a free port, passes
// SIGTERM, SIGINT and SIGHUP on, and waits until all have left. When one fails, the others are told through
// the store, then ended: SIGTERM at once, SIGKILL after kill_grace; the failing rank's own message is printed
// when all are gone, so that it stands last. Ranks do not outlive this process, however it ends: the kernel
// kills them. (That bond is to the calling thread: call from the main one, before other threads exist, as
// they would take the signals.)
//
// Returns the exit status for this process: 0, or that of the rank that failed first (128 + signal when a
// signal ended it). Throws ValueError for fewer than one rank, RuntimeFailure when nothing can be started.
int spawn_ranks(const SpawnOptions& options);

}  // namespace steppe::launch
