// How many threads a rank computes with.
#pragma once

#include "cli/launch/environment.h"

namespace steppe::launch {

struct Cores {
  int own = 1;   // this process may run on them
  int node = 1;  // all ranks of the node share them
};

// From the affinity masks of this process and of its parent (a launcher that binds ranks binds only the
// child), both capped by the container's CPU quota (cgroup v2 and v1) and, for `node`, by SLURM_CPUS_ON_NODE.
Cores count_cores(const Lookup& lookup);

// max(1, node cores ÷ local ranks), never more than the process may run on. OMP_NUM_THREADS, where the user
// set it, wins; torchrun's OMP_NUM_THREADS=1 for several processes counts as unset: it is torchrun's own
// default, and a host optimizer would crawl. Throws ValueError when OMP_NUM_THREADS is not a positive number.
int automatic_threads(const LaunchEnvironment& environment, const Cores& cores, const Lookup& lookup);

}  // namespace steppe::launch
