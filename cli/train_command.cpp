// steppe train RECIPE [--set key=value …] [--ranks R]
#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>
#include <ATen/Parallel.h>
#include <unistd.h>

#include <CLI/App.hpp>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/commands.h"
#include "cli/launch/environment.h"
#include "cli/launch/exit_report.h"
#include "cli/launch/signals.h"
#include "cli/launch/spawn.h"
#include "cli/launch/store.h"
#include "cli/launch/threads.h"
#include "cli/launch/unless_stopped.h"
#include "cli/launch/watchdog.h"
#include "cli/load_recipe.h"
#include "cli/run_folder.h"
#include "cli/run_plan.h"
#include "cli/run_record.h"
#include "cli/validators.h"
#include "steppe/base/error.h"
#include "steppe/base/log.h"
#include "steppe/recipe/places.h"
#include "steppe/recipe/run_config.h"
#include "steppe/train/resume.h"
#include "steppe/train/trainer.h"

namespace steppe::cli {
namespace {

constexpr int kBadInput = 2;
constexpr std::string_view kPlace = "[launch] ";  // before what the parent says

struct Options {
  std::string recipe;
  std::vector<std::string> overrides;
  int ranks = 0;
  bool beside_other_files = false;
};

OtherFiles other_files(const Options& options) {
  return options.beside_other_files ? OtherFiles::kLeaveAlone : OtherFiles::kRefuse;
}

bool wants_color(const launch::Lookup& lookup) {
  return isatty(STDERR_FILENO) != 0 && !lookup("NO_COLOR").has_value();
}

int spawn(const Options& options) {
  launch::check_may_spawn(launch::process_environment());
  const auto [recipe, run] = load_recipe(options.recipe, options.overrides, options.ranks);
  if (at::globalContext().hasCUDA()) {
    const int devices = at::accelerator::deviceCount();
    STEPPE_CHECK_VALUE(options.ranks <= devices,
                       "[launch] --ranks must be at most the {} CUDA devices of this machine, got {}; "
                       "CUDA_VISIBLE_DEVICES= trains on its CPU",
                       devices, options.ranks);
  }
  check_run_folder(run, recipe.resolved_toml(),
                   other_files(options));  // one clear message, rather than one per rank
  launch::SpawnOptions spawn;
  spawn.ranks = options.ranks;
  spawn.arguments = {"train", options.recipe};
  for (const auto& override : options.overrides) {
    spawn.arguments.push_back("--set");
    spawn.arguments.push_back(override);
  }
  if (options.beside_other_files) spawn.arguments.emplace_back("--beside-other-files");
  std::string said;
  spawn.print = [&said](const std::string& text) {
    said = text.starts_with(kPlace) ? text.substr(kPlace.size()) : text;
    std::fprintf(stderr, "%s\n", text.c_str());
  };
  const int status = launch::spawn_ranks(spawn);
  if (status != 0) fail_unfinished(run.run.folder, said.substr(0, said.find("\n[launch]")));
  return status;
}

std::chrono::milliseconds milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
}

void set_threads(const launch::LaunchEnvironment& environment, LoadedRecipe& loaded,
                 const launch::Lookup& lookup) {
  const auto threads = loaded.run.hardware.threads_per_rank.value_or(
      launch::automatic_threads(environment, launch::count_cores(lookup), lookup));
  at::set_num_threads(static_cast<int>(threads));
  loaded.recipe.record("hardware.threads_per_rank", threads);
}

launch::WatchdogOptions watchdog_options(const launch::LaunchEnvironment& environment,
                                         const recipe::RunConfig& run, RunRecord& record) {
  auto watch = launch::watchdog_options(environment, milliseconds(run.comm.timeout));
  watch.abort = [&record](const launch::Failure& failure) { record.fail(failure); };
  if (environment.rank == 0) watch.print = [](const std::string&) {};  // the record says it
  return watch;
}

// While other threads are in the midst of something that nobody waits for.
[[noreturn]] void leave_stopped(int signal, const std::string& when, const Log& log, RunRecord& record,
                                launch::Watchdog& watchdog) {
  const auto name = launch::signal_name(signal);
  log.info("stopped by {} {}", name, when);
  record.end(launch::RunState::kStopped, name);
  watchdog.stop();
  log.flush();
  ::_exit(0);
}

// From a thread beside the training thread.
[[noreturn]] void leave(const train::Outcome& outcome, const std::string& failure, const Log& log,
                        RunRecord& record, launch::Watchdog& watchdog) {
  record.finished_step(outcome.step);
  if (failure.empty())
    leave_stopped(outcome.stop_signal, fmt::format("after step {}", outcome.step), log, record, watchdog);
  record.fail(watchdog.fail(RuntimeFailure(failure)));
  log.flush();
  ::_exit(1);
}

int train_rank(const launch::LaunchEnvironment& environment, LoadedRecipe& loaded, OtherFiles others,
               const launch::Lookup& lookup) {
  const auto& run = loaded.run;
  launch::follow_launcher(environment);
  set_threads(environment, loaded, lookup);

  const auto store = launch::make_store(environment, milliseconds(run.comm.init_timeout));
  static const launch::SignalFlag signals;  // a wait for ranks that do not come ends at once
  std::optional<Log> log;
  RunRecord record(environment, run.run.folder);
  std::atomic<bool> leaving{false};
  launch::Watchdog watchdog(store, environment, watchdog_options(environment, run, record));
  try {
    if (environment.rank == 0)
      claim_run_folder(run, loaded.recipe.resolved_toml(), others);  // this run's from here on
    const bool color = wants_color(lookup);
    log.emplace(LogOptions{.rank = environment.rank, .folder = run.run.folder + "/logs", .color = color});
    record.begin(*log);
    if (const auto remark = train::keep_saved_model(loaded.run); !remark.empty()) log->info("{}", remark);
    loaded.run.hardware.ranks_per_node = agree_on_ranks_per_node(run, environment, *store, *log);
    train::Process process{.rank = environment.rank,
                           .world_size = environment.world_size,
                           .local_rank = environment.local_rank,
                           .local_world_size = environment.local_world_size,
                           .store = store,
                           .color = color,
                           .resolved_recipe = loaded.recipe.resolved_toml()};
    process.stop_signal = [] { return signals.received(); };
    RunPlan plan;
    const auto make_plan = [&, num_threads = at::get_num_threads()] {
      plan = plan_run(run, environment, *store, num_threads, *log);
    };
    const int asked = launch::run_unless_stopped(
        make_plan, *store,
        {environment.rank, environment.world_size, process.stop_signal, milliseconds(run.comm.init_timeout)});
    if (asked != 0) leave_stopped(asked, "before it began", *log, record, watchdog);
    process.planned = plan.memory;
    process.attention_output_bytes = plan.attention_output_bytes;
    process.progress = [&](int64_t number, const char* where) { watchdog.progress(number, where); };
    process.finished_step = [&](int64_t number) { record.finished_step(number); };
    process.since_signal = [] { return std::chrono::duration<double>(signals.since_received()).count(); };
    process.dropped_step = [&] { leaving = true; };
    process.leave = [&](int64_t number, const std::string& failure) {
      leave({number, signals.received()}, failure, *log, record, watchdog);
    };
    train::Outcome outcome;
    {
      train::Trainer trainer(run, process, *log);
      outcome = trainer.run();
    }
    if (outcome.stop_signal != 0 && outcome.step < run.training.steps) {
      const auto name = launch::signal_name(outcome.stop_signal);
      log->info("stopped by {} after step {}", name, outcome.step);
      record.end(launch::RunState::kStopped, name);
    } else {
      record.end(launch::RunState::kFinished, "");
    }
    watchdog.stop();
    return 0;
  } catch (const ValueError& error) {
    while (leaving) ::pause();  // another thread ends the process; ranks that have left are no failure
    record.fail(watchdog.fail(ValueError(recipe::with_places(loaded.recipe, error.what()))));
    return kBadInput;
  } catch (const std::exception& error) {
    while (leaving) ::pause();
    record.fail(watchdog.fail(error));
    return 1;
  }
}

int train(const Options& options) {
  const auto lookup = launch::process_environment();
  launch::LaunchEnvironment environment;
  try {
    if (options.ranks > 0) return spawn(options);
    environment = launch::detect_launch(lookup);
    auto loaded = load_recipe(options.recipe, options.overrides, environment.world_size);
    return train_rank(environment, loaded, other_files(options), lookup);
  } catch (const std::exception& error) {
    launch::write_error_file(environment.error_file, launch::describe(error));
    const bool others_speak = environment.launcher == launch::Launcher::kLocal || environment.rank != 0;
    const bool speaks = environment.error_file.empty() || !others_speak;
    if (speaks) std::fprintf(stderr, "error: %s\n", launch::describe(error).message.c_str());
    return dynamic_cast<const ValueError*>(&error) != nullptr ? kBadInput : 1;
  }
}

}  // namespace

void add_train_command(CLI::App& app, int& status) {
  auto options = std::make_shared<Options>();
  auto* command = app.add_subcommand("train", "train a model as a recipe says");
  command->add_option("recipe", options->recipe, "a TOML file")->required();
  command->add_option("--set", options->overrides, "override a key: --set training.steps=100")->take_all();
  command->add_option("--ranks", options->ranks, "start this many ranks on this machine")
      ->check(whole_number_from(1));
  command->add_flag("--beside-other-files", options->beside_other_files,
                    "use run.folder though it holds files that are not a run's");
  command->callback([options, &status] { status = train(*options); });
}

}  // namespace steppe::cli
