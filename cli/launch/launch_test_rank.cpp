// A program for launch_test: a rank that "trains", and fails in the way it is told, or the parent of such
// ranks.
//   launch_test_rank parent RANKS MODE FOLDER
//   launch_test_rank rank MODE FOLDER
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <stdexcept>
#include <string>
#include <thread>

#include "cli/launch/environment.h"
#include "cli/launch/exit_report.h"
#include "cli/launch/signals.h"
#include "cli/launch/spawn.h"
#include "cli/launch/store.h"
#include "cli/launch/watchdog.h"
#include "steppe/base/error.h"

namespace steppe::launch {
namespace {

using std::chrono::milliseconds;

constexpr int kSteps = 8, kFailingStep = 3, kFailingRank = 1;

struct Run {
  std::string mode, folder;
  LaunchEnvironment environment;
  const SignalFlag* signals;
};

void leave_mark(const Run& run, const std::string& what, const std::string& text) {
  write_atomically(fmt::format("{}/{}_{}", run.folder, what, run.environment.rank), text);
}

[[noreturn]] void sleep_forever() {
  while (true) ::pause();
}

void misbehave(const Run& run, int step) {
  if (run.mode == "host_throws" && run.environment.rank == 0 && step == kFailingStep) {
    throw ValueError("[data] corpus.idx ends early");
  }
  if (run.environment.rank != kFailingRank || step != kFailingStep) return;
  if (run.mode == "throw") throw ValueError("[data] token id 70000 must be below vocab_size=512");
  if (run.mode == "kill" || run.mode == "kill_seen") ::raise(SIGKILL);
  if (run.mode == "exit") ::_exit(7);
  if (run.mode == "hang") sleep_forever();
  if (run.mode == "freeze") ::raise(SIGSTOP);
}

bool process_lives(const std::string& pid) {
  std::ifstream stat("/proc/" + pid + "/stat");
  std::string number, name, state;
  return (stat >> number >> name >> state) && state != "Z" && state != "X";
}

// Stands for a collective: returns when all ranks have come, and blocks as long as they have not. In mode
// kill_seen it notices a dead peer, as Gloo does, within milliseconds.
void meet(c10d::Store& store, const Run& run, int step) {
  const std::string go = "go/" + std::to_string(step);
  if (store.add("come/" + std::to_string(step), 1) == run.environment.world_size)
    store.set(go, std::string("1"));
  if (run.mode != "kill_seen") {
    store.wait({go}, milliseconds(600000));
    return;
  }
  std::string peer;
  std::ifstream(fmt::format("{}/pid_{}", run.folder, kFailingRank)) >> peer;
  while (!store.check({go})) {
    if (!process_lives(peer))
      throw std::runtime_error("[gloo/transport/tcp/pair.cc:534] Connection closed by peer");
    std::this_thread::sleep_for(milliseconds(1));
  }
}

void train(c10d::Store& store, Watchdog& watchdog, const Run& run) {
  if (run.mode == "until_signal") {
    leave_mark(run, "ready", "1");
    for (int step = 1; run.signals->received() == 0; ++step) {
      watchdog.progress(step, "forward");
      std::this_thread::sleep_for(milliseconds(5));
    }
    leave_mark(run, "stopped", signal_name(run.signals->received()));
    return;
  }
  for (int step = 1; step <= kSteps; ++step) {
    watchdog.progress(step, "forward");
    misbehave(run, step);
    watchdog.progress(step, "all-reduce");
    meet(store, run, step);
    if (run.environment.rank == 0 && run.mode == "host_dies" && step == kFailingStep) ::raise(SIGKILL);
  }
}

int rank_main(const std::string& mode, const std::string& folder, const SignalFlag& signals) {
  Run run{mode, folder, detect_launch(process_environment()), &signals};
  follow_launcher(run.environment);
  leave_mark(run, "pid", std::to_string(::getpid()));
  try {
    if (mode == "early" && run.environment.rank == kFailingRank) {
      throw ValueError("[recipe] optimizer.lr must be positive, got -1");
    }
    const auto store = make_store(run.environment, milliseconds(60000));
    // A busy machine may stop anybody for seconds: limits that are waited for are those that a mode is about.
    const milliseconds never(600000);
    const bool stands_still = mode == "hang" || mode == "freeze";
    WatchdogOptions options = watchdog_options(run.environment, stands_still ? milliseconds(2000) : never);
    options.interval = milliseconds(100);
    options.heartbeat_limit = mode == "freeze" ? milliseconds(3000) : never;
    // Where the parent is killed, the kernel's death signal is to be seen at work, not the lost store.
    options.store_limit = mode == "until_signal" ? never : milliseconds(500);
    options.abort = [&run](const Failure&) { leave_mark(run, "aborted", "1"); };
    Watchdog watchdog(store, run.environment, options);
    try {
      train(*store, watchdog, run);
    } catch (const std::exception& error) {
      const Failure cause = watchdog.fail(error);
      if (run.environment.launcher != Launcher::kLocal) {
        std::fprintf(stderr, "[launch] %s\n", failure_text(cause).c_str());
      }
      return 3;
    }
    watchdog.stop();
    leave_mark(run, "finished", "1");
    return 0;
  } catch (const std::exception& error) {
    write_error_file(run.environment.error_file, describe(error));
    return 2;
  }
}

}  // namespace
}  // namespace steppe::launch

int main(int count, char** arguments) {
  using namespace steppe::launch;
  const std::string role = count > 1 ? arguments[1] : "";
  if (role == "parent" && count == 5) {
    SpawnOptions options;
    options.ranks = std::stoi(arguments[2]);
    options.arguments = {"rank", arguments[3], arguments[4]};
    options.kill_grace = std::chrono::milliseconds(2000);
    return spawn_ranks(options);
  }
  if (role == "rank" && count == 4) {
    const SignalFlag signals;
    return rank_main(arguments[2], arguments[3], signals);
  }
  std::fprintf(stderr, "usage: launch_test_rank parent RANKS MODE FOLDER | rank MODE FOLDER\n");
  return 64;
}
