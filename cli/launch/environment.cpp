#include "cli/launch/environment.h"

#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <charconv>
#include <cstdlib>
#include <vector>

#include "cli/launch/slurm.h"
#include "steppe/base/error.h"

namespace steppe::launch {
namespace {

constexpr int kMostRanks = 1 << 24;
// Derived ports lie below Linux's ephemeral range (32768 and up), where outgoing connections sit.
constexpr unsigned kFirstDerivedPort = 15000, kDerivedPorts = 15000;

// Reads variables and says which one was wrong.
class Reader {
 public:
  explicit Reader(const Lookup& lookup) : lookup_(lookup) {}

  bool has(const std::string& variable) const { return text(variable).has_value(); }

  std::optional<std::string> text(const std::string& variable) const {
    auto value = lookup_(variable);
    if (value && value->empty()) value.reset();
    return value;
  }

  std::optional<int> number(const std::string& variable, int least, int most) const {
    const auto value = text(variable);
    if (!value) return std::nullopt;
    int result = 0;
    const char* end = value->data() + value->size();
    const auto [stop, error] = std::from_chars(value->data(), end, result);
    STEPPE_CHECK_VALUE(error == std::errc() && stop == end && result >= least && result <= most,
                       "[launch] {} must be an integer from {} to {}, got \"{}\"", variable, least, most,
                       *value);
    return result;
  }

  int required(const std::string& variable, int least, int most, const char* why) const {
    const auto value = number(variable, least, most);
    STEPPE_CHECK_VALUE(value, "[launch] {} is not set, but {}", variable, why);
    return *value;
  }

 private:
  const Lookup& lookup_;
};

// Names of the four numbers, as this launcher calls them.
struct RankVariables {
  const char *rank, *world_size, *local_rank, *local_world_size;
};

void check_consistent(const LaunchEnvironment& e, const RankVariables& v) {
  STEPPE_CHECK_VALUE(e.rank < e.world_size, "[launch] {}={} must be below {}={}", v.rank, e.rank,
                     v.world_size, e.world_size);
  STEPPE_CHECK_VALUE(e.local_world_size <= e.world_size, "[launch] {}={} must be at most {}={}",
                     v.local_world_size, e.local_world_size, v.world_size, e.world_size);
  STEPPE_CHECK_VALUE(e.local_rank < e.local_world_size, "[launch] {}={} must be below {}={}", v.local_rank,
                     e.local_rank, v.local_world_size, e.local_world_size);
  STEPPE_CHECK_VALUE(e.local_rank <= e.rank, "[launch] {}={} must be at most {}={}", v.local_rank,
                     e.local_rank, v.rank, e.rank);
}

// The same on every rank of a job, different between jobs that share a node.
unsigned derived_port(const std::string& job) {
  unsigned hash = 2166136261u;  // FNV-1a
  for (const unsigned char c : job) hash = (hash ^ c) * 16777619u;
  return kFirstDerivedPort + hash % kDerivedPorts;
}

void read_master(const Reader& read, LaunchEnvironment& e) {
  if (const auto address = read.text("MASTER_ADDR")) e.master_addr = *address;
  if (const auto port = read.number("MASTER_PORT", 1, 65535)) {
    e.master_port = static_cast<std::uint16_t>(*port);
    e.master_port_source = "MASTER_PORT";
  }
}

void derive_port(const Reader& read, LaunchEnvironment& e, const std::vector<const char*>& job_variables) {
  for (const char* variable : job_variables) {
    if (const auto job = read.text(variable)) {
      // Steps of one Slurm job may run at once.
      const std::string step = e.launcher == Launcher::kSlurm ? read.text("SLURM_STEP_ID").value_or("") : "";
      e.master_port = static_cast<std::uint16_t>(derived_port(*job + "." + step));
      e.master_port_source = std::string("derived from ") + variable;
      return;
    }
  }
}

LaunchEnvironment detect_standard(const Reader& read) {
  STEPPE_CHECK_VALUE(
      read.has("LOCAL_RANK"),
      "[launch] RANK and WORLD_SIZE are set, but LOCAL_RANK is not: whether they count processes or pods "
      "(Kubeflow counts pods) cannot be told. Start with `torchrun --no-python steppe train …`, which reads "
      "PET_* and sets all three, or set LOCAL_RANK and LOCAL_WORLD_SIZE too");
  LaunchEnvironment e;
  e.launcher = read.has("TORCHELASTIC_RUN_ID") ? Launcher::kTorchrun
               : read.has("STEPPE_PARENT")     ? Launcher::kLocal
                                               : Launcher::kVariables;
  const char* why = "LOCAL_RANK is: RANK, WORLD_SIZE and LOCAL_RANK go together";
  e.local_rank = *read.number("LOCAL_RANK", 0, kMostRanks);
  e.rank = read.required("RANK", 0, kMostRanks, why);
  e.world_size = read.required("WORLD_SIZE", 1, kMostRanks, why);
  e.local_world_size = read.number("LOCAL_WORLD_SIZE", 1, kMostRanks).value_or(e.world_size);
  check_consistent(e, {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"});
  const auto agent = read.text("TORCHELASTIC_USE_AGENT_STORE");
  e.agent_store = agent && (*agent == "True" || *agent == "true" || *agent == "1");
  e.error_file = read.text("TORCHELASTIC_ERROR_FILE").value_or("");
  e.attempt = read.number("TORCHELASTIC_RESTART_COUNT", 0, kMostRanks).value_or(0);
  for (const char* variable : {"MASTER_ADDR", "MASTER_PORT"}) {
    STEPPE_CHECK_VALUE(read.has(variable) || (e.world_size == 1 && !e.agent_store),
                       "[launch] {} is not set, but WORLD_SIZE={} ranks must find one another", variable,
                       e.world_size);
  }
  read_master(read, e);
  return e;
}

LaunchEnvironment detect_mpi(const Reader& read, Launcher launcher, const RankVariables& v) {
  LaunchEnvironment e;
  e.launcher = launcher;
  const std::string why = fmt::format("{} started this process", name(launcher));
  e.rank = read.required(v.rank, 0, kMostRanks, why.c_str());
  e.world_size = read.required(v.world_size, 1, kMostRanks, why.c_str());
  e.local_rank = read.required(v.local_rank, 0, kMostRanks, why.c_str());
  e.local_world_size = read.required(v.local_world_size, 1, kMostRanks, why.c_str());
  check_consistent(e, v);
  derive_port(read, e, {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "PMI_JOBID", "SLURM_JOB_ID"});
  if (e.local_world_size < e.world_size && !read.has("MASTER_ADDR")) {
    // mpirun fills the nodes of an allocation in their order.
    const auto nodes = read.text("SLURM_JOB_NODELIST");
    STEPPE_CHECK_VALUE(
        nodes,
        "[launch] MASTER_ADDR is not set, but {} ranks on several nodes must find rank 0: pass "
        "its host, e.g. `mpirun -x MASTER_ADDR=HOST …` (MPICH: `-genv MASTER_ADDR HOST`)",
        e.world_size);
    e.master_addr = first_host(*nodes);
  }
  read_master(read, e);
  return e;
}

int slurm_local_world_size(const Reader& read, const LaunchEnvironment& e) {
  const int node = read.number("SLURM_NODEID", 0, kMostRanks).value_or(0);
  for (const char* variable : {"SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"}) {
    const auto list = read.text(variable);
    if (!list) continue;
    const auto tasks = tasks_per_node(*list);
    STEPPE_CHECK_VALUE(node < static_cast<int>(tasks.size()),
                       "[launch] SLURM_NODEID={} lies outside the {} nodes of {}=\"{}\"", node, tasks.size(),
                       variable, *list);
    return tasks[node];
  }
  if (const auto tasks = read.number("SLURM_NTASKS_PER_NODE", 1, kMostRanks)) return *tasks;
  int nodes = 1;
  for (const char* variable : {"SLURM_NNODES", "SLURM_JOB_NUM_NODES", "SLURM_STEP_NUM_NODES"}) {
    nodes = read.number(variable, 1, kMostRanks).value_or(nodes);  // the step's, when there is one
  }
  return (e.world_size + nodes - 1) / nodes;
}

LaunchEnvironment detect_slurm(const Reader& read) {
  LaunchEnvironment e;
  e.launcher = Launcher::kSlurm;
  const char* why = "SLURM_PROCID is: srun sets both";
  e.rank = *read.number("SLURM_PROCID", 0, kMostRanks);
  e.world_size = read.number("SLURM_STEP_NUM_TASKS", 1, kMostRanks).value_or(0);
  if (e.world_size == 0) e.world_size = read.required("SLURM_NTASKS", 1, kMostRanks, why);
  e.local_rank = read.required("SLURM_LOCALID", 0, kMostRanks, why);
  // A batch script carries the variables of its first task; srun adds the step's.
  STEPPE_CHECK_VALUE(
      e.world_size == 1 || read.has("SLURM_STEP_ID") || read.text("ENVIRONMENT").value_or("") != "BATCH",
      "[launch] SLURM_NTASKS={}, but this process is the batch script's own, not a task: start with "
      "`srun steppe train …`, or with `steppe train --ranks R` on one node",
      e.world_size);
  e.local_world_size = slurm_local_world_size(read, e);
  check_consistent(
      e, {"SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "tasks per node (SLURM_TASKS_PER_NODE)"});
  for (const char* variable : {"SLURM_NODELIST", "SLURM_JOB_NODELIST", "SLURM_STEP_NODELIST"}) {
    if (const auto nodes = read.text(variable)) e.master_addr = first_host(*nodes);
  }
  derive_port(read, e, {"SLURM_JOB_ID", "SLURM_JOBID"});
  read_master(read, e);
  STEPPE_CHECK_VALUE(
      e.master_addr != "127.0.0.1" || e.local_world_size == e.world_size,
      "[launch] neither SLURM_JOB_NODELIST nor MASTER_ADDR is set, but {} tasks on several nodes "
      "must find rank 0",
      e.world_size);
  return e;
}

// Kubeflow configures torchrun by PET_*. Without torchrun a pod can be one rank, no more.
LaunchEnvironment detect_kubeflow(const Reader& read) {
  const std::string per_node = read.text("PET_NPROC_PER_NODE").value_or("1");
  STEPPE_CHECK_VALUE(
      per_node == "1",
      "[launch] PET_NPROC_PER_NODE={} asks for several processes in this pod, but LOCAL_RANK is "
      "not set: start with `torchrun --no-python steppe train …`, which reads PET_*",
      per_node);
  LaunchEnvironment e;
  e.launcher = Launcher::kKubeflow;
  e.world_size = *read.number("PET_NNODES", 1, kMostRanks);
  e.rank = e.world_size == 1 ? read.number("PET_NODE_RANK", 0, kMostRanks).value_or(0)
                             : read.required("PET_NODE_RANK", 0, kMostRanks, "PET_NNODES is");
  check_consistent(e, {"PET_NODE_RANK", "PET_NNODES", "PET_NODE_RANK", "PET_NNODES"});
  const auto address = read.text("PET_MASTER_ADDR");
  if (address) e.master_addr = *address;
  if (const auto port = read.number("PET_MASTER_PORT", 1, 65535)) {
    e.master_port = static_cast<std::uint16_t>(*port);
    e.master_port_source = "PET_MASTER_PORT";
  }
  read_master(read, e);
  STEPPE_CHECK_VALUE(address || read.has("MASTER_ADDR") || e.world_size == 1,
                     "[launch] PET_MASTER_ADDR is not set, but PET_NNODES={} pods must find one another",
                     e.world_size);
  return e;
}

constexpr RankVariables kOpenMpiVariables{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                                          "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"};
constexpr RankVariables kPmiVariables{"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"};

}  // namespace

const char* name(Launcher launcher) {
  switch (launcher) {
    case Launcher::kNone:
      return "no launcher";
    case Launcher::kVariables:
      return "RANK, WORLD_SIZE and LOCAL_RANK";
    case Launcher::kLocal:
      return "--ranks";
    case Launcher::kTorchrun:
      return "torchrun";
    case Launcher::kKubeflow:
      return "Kubeflow (PET_*)";
    case Launcher::kSlurm:
      return "Slurm";
    case Launcher::kOpenMpi:
      return "Open MPI";
    case Launcher::kPmi:
      return "MPICH (PMI)";
  }
  return "unknown";
}

Lookup process_environment() {
  return [](const std::string& variable) -> std::optional<std::string> {
    const char* value = std::getenv(variable.c_str());
    if (value == nullptr) return std::nullopt;
    return value;
  };
}

LaunchEnvironment detect_launch(const Lookup& lookup) {
  const Reader read(lookup);
  if (read.has("RANK") || read.has("WORLD_SIZE") || read.has("LOCAL_RANK")) return detect_standard(read);
  // Before Slurm: an mpirun inside a batch script inherits the script's SLURM_PROCID=0.
  if (read.has(kOpenMpiVariables.rank)) return detect_mpi(read, Launcher::kOpenMpi, kOpenMpiVariables);
  // srun --mpi=pmi2 sets PMI_RANK too, but no local rank; then Slurm's variables are complete.
  if (read.has(kPmiVariables.rank) && (read.has(kPmiVariables.local_rank) || !read.has("SLURM_PROCID"))) {
    return detect_mpi(read, Launcher::kPmi, kPmiVariables);
  }
  if (read.has("SLURM_PROCID")) return detect_slurm(read);
  if (read.has("PET_NNODES")) return detect_kubeflow(read);
  LaunchEnvironment alone;
  read_master(read, alone);
  return alone;
}

void check_may_spawn(const Lookup& lookup) {
  const Reader read(lookup);
  const auto refuse = [&read](const char* variable) {
    const auto value = read.text(variable);
    STEPPE_CHECK_VALUE(!value,
                       "[launch] --ranks starts ranks by itself, but {}={} says that a launcher has done so "
                       "already: give one or the other",
                       variable, *value);
  };
  refuse("RANK");
  refuse("LOCAL_RANK");
  // A launcher's single task may start the node's ranks.
  if (read.text(kOpenMpiVariables.world_size).value_or("1") != "1") refuse(kOpenMpiVariables.rank);
  if (read.text(kPmiVariables.world_size).value_or("1") != "1") refuse(kPmiVariables.rank);
  if (read.text("SLURM_STEP_NUM_TASKS").value_or("1") != "1") refuse("SLURM_STEP_ID");
}

bool hosts_store(const LaunchEnvironment& e) {
  return e.rank == 0 && e.world_size > 1 && !e.agent_store;
}

void follow_launcher(const LaunchEnvironment& environment) {
  if (environment.launcher != Launcher::kTorchrun) return;
  const pid_t agent = getppid();
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (getppid() != agent) raise(SIGTERM);  // it died in between
}

}  // namespace steppe::launch
