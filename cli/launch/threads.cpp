#include "cli/launch/threads.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <fstream>
#include <limits>
#include <sstream>
#include <thread>
#include <vector>

#include "steppe/base/error.h"

namespace steppe::launch {
namespace {

constexpr int kMostCores = 1 << 16;

// Zero when the process is gone or hidden.
int affinity_cores(pid_t process) {
  for (int cores = 1024; cores <= kMostCores; cores *= 2) {
    std::vector<unsigned long> mask(CPU_ALLOC_SIZE(cores) / sizeof(unsigned long));
    auto* set = reinterpret_cast<cpu_set_t*>(mask.data());
    const std::size_t bytes = mask.size() * sizeof(unsigned long);
    if (sched_getaffinity(process, bytes, set) == 0) return CPU_COUNT_S(bytes, set);
  }
  return 0;
}

// The folder of this process in the hierarchy of `controller` (empty: version 2).
std::string cgroup_of(const std::string& controller) {
  std::ifstream file("/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    std::istringstream controllers(line.substr(first + 1, second - first - 1));
    std::string one;
    if (controller.empty() && second == first + 1) return line.substr(second + 1);
    while (std::getline(controllers, one, ',')) {
      if (one == controller) return line.substr(second + 1);
    }
  }
  return "/";
}

// Quota ÷ period of one folder; infinite where there is no limit or no file.
double quota_v2(const std::string& folder) {
  std::ifstream file(folder + "/cpu.max");
  std::string quota;
  double period = 0;
  if (!(file >> quota >> period) || quota == "max" || period <= 0)
    return std::numeric_limits<double>::infinity();
  return std::atof(quota.c_str()) / period;
}

double quota_v1(const std::string& folder) {
  double quota = 0, period = 0;
  if (!(std::ifstream(folder + "/cpu.cfs_quota_us") >> quota) ||
      !(std::ifstream(folder + "/cpu.cfs_period_us") >> period) || quota <= 0 || period <= 0) {
    return std::numeric_limits<double>::infinity();
  }
  return quota / period;
}

// Every folder from the process's own up to the root may set a limit; inside a container the path shown
// may not exist, and the root is the container's.
int quota_cores() {
  double least = std::numeric_limits<double>::infinity();
  const auto climb = [&least](const std::string& root, std::string path, auto quota) {
    while (true) {
      least = std::min(least, quota(root + path));
      const std::size_t slash = path.find_last_of('/');
      if (path.size() <= 1 || slash == std::string::npos) break;
      path.resize(slash);
    }
    least = std::min(least, quota(root));
  };
  climb("/sys/fs/cgroup", cgroup_of(""), quota_v2);
  climb("/sys/fs/cgroup/cpu", cgroup_of("cpu"), quota_v1);
  climb("/sys/fs/cgroup/cpu,cpuacct", cgroup_of("cpu"), quota_v1);
  return std::isfinite(least) ? std::max(1, static_cast<int>(std::ceil(least))) : kMostCores;
}

int positive(const std::string& variable, const std::string& text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  // OpenMP allows a list, one number per nesting level; the first is ours.
  STEPPE_CHECK_VALUE(error == std::errc() && value > 0 && (end == text.data() + text.size() || *end == ','),
                     "[launch] {} must be a positive number, got \"{}\"", variable, text);
  return value;
}

}  // namespace

Cores count_cores(const Lookup& lookup) {
  const int quota = quota_cores();
  int own = affinity_cores(0);
  if (own < 1) own = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  Cores cores;
  cores.own = std::max(1, std::min(own, quota));
  cores.node = std::max(1, std::min(std::max(own, affinity_cores(getppid())), quota));
  // Slurm's daemon, the parent under srun, may run on more cores than the job was given.
  if (const auto given = lookup("SLURM_CPUS_ON_NODE")) {
    cores.node = std::min(cores.node, positive("SLURM_CPUS_ON_NODE", *given));
  }
  return cores;
}

int automatic_threads(const LaunchEnvironment& environment, const Cores& cores, const Lookup& lookup) {
  if (const auto set = lookup("OMP_NUM_THREADS"); set && !set->empty()) {
    const int threads = positive("OMP_NUM_THREADS", *set);
    const bool launchers_default =
        environment.launcher == Launcher::kTorchrun && environment.local_world_size > 1 && threads == 1;
    if (!launchers_default) return threads;
  }
  return std::max(1, std::min(cores.own, cores.node / environment.local_world_size));
}

}  // namespace steppe::launch
