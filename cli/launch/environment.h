// Which rank this process is, read from the variables of whatever started it.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace steppe::launch {

enum class Launcher {
  kNone,       // started by hand: one process
  kVariables,  // RANK, WORLD_SIZE, LOCAL_RANK, … set by something that is not torchrun
  kLocal,      // RANK and friends, set by our own `--ranks`, whose parent reports failures
  kTorchrun,
  kKubeflow,  // PET_* of a pod that holds one process and no torchrun
  kSlurm,
  kOpenMpi,
  kPmi,  // MPICH, Intel MPI
};

const char* name(Launcher launcher);

struct LaunchEnvironment {
  Launcher launcher = Launcher::kNone;
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  // Ranks on this node. A launcher that does not say (RANK, WORLD_SIZE, LOCAL_RANK alone) counts as one
  // node: too few threads are slow, too many are slower.
  int local_world_size = 1;
  std::string master_addr = "127.0.0.1";
  std::uint16_t master_port = 29500;
  std::string master_port_source = "the default";  // for messages
  bool agent_store = false;                        // the launcher serves the store; every rank is a client
  std::string error_file;  // where the launcher looks for a failure's message; empty: nowhere
  int attempt = 0;         // restarts so far, under a launcher that keeps its store across them
};

// The value of a variable, or nothing.
using Lookup = std::function<std::optional<std::string>(const std::string& name)>;
Lookup process_environment();

// A pure function of the lookup. Looks, in this order, for torchrun's variables, Open MPI's, MPICH's,
// Slurm's and Kubeflow's; none of them: one process. MASTER_ADDR and MASTER_PORT override what Slurm or MPI
// would give. Throws ValueError naming the variable that is missing, unreadable or inconsistent.
LaunchEnvironment detect_launch(const Lookup& lookup);

// Throws ValueError when a launcher has already given this process a rank: `--ranks` would start R more
// for each.
void check_may_spawn(const Lookup& lookup);

// Rank 0 serves the store itself.
bool hosts_store(const LaunchEnvironment& environment);

// Asks the kernel for SIGTERM when torchrun's agent dies: it can be killed without a word to its ranks
// (SIGUSR1 does). The rank then saves; the watchdog ends it when the agent's store stays away.
// Other launchers end their ranks themselves. Call from the main thread.
void follow_launcher(const LaunchEnvironment& environment);

}  // namespace steppe::launch
