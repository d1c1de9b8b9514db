// steppe train RECIPE [--set key=value …] [--ranks R]
#include <ATen/Parallel.h>
#include <unistd.h>

#include <CLI/App.hpp>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/launch/environment.h"
#include "cli/launch/exit_report.h"
#include "cli/launch/signals.h"
#include "cli/launch/spawn.h"
#include "cli/launch/store.h"
#include "cli/launch/threads.h"
#include "cli/launch/watchdog.h"
#include "steppe/base/error.h"
#include "steppe/base/log.h"
#include "steppe/recipe/run_config.h"
#include "steppe/train/trainer.h"

namespace steppe::cli {
namespace {

constexpr int kBadInput = 2;

struct Options {
  std::string recipe;
  std::vector<std::string> overrides;
  int ranks = 0;
};

struct LoadedRecipe {
  recipe::Recipe recipe;
  recipe::RunConfig run;
};

LoadedRecipe load(const Options& options) {
  auto recipe = recipe::Recipe::load(options.recipe, options.overrides);
  auto run = recipe::read_run_config(recipe);
  return {std::move(recipe), std::move(run)};
}

// A folder that holds a run is not written over.
void check_fresh(const recipe::RunConfig& run) {
  const auto metrics = std::filesystem::path(run.run.folder) / "metrics.jsonl";
  std::error_code ignored;
  const auto size = std::filesystem::file_size(metrics, ignored);
  STEPPE_CHECK_VALUE(ignored || size == 0,
                     "[train] {} holds a run already: name another with --set run.folder=…, or remove it",
                     run.run.folder);
}

bool wants_color(const launch::Lookup& lookup) {
  return isatty(STDERR_FILENO) != 0 && !lookup("NO_COLOR").has_value();
}

int spawn(const Options& options) {
  launch::check_may_spawn(launch::process_environment());
  check_fresh(load(options).run);  // one clear message, rather than one per rank
  launch::SpawnOptions spawn;
  spawn.ranks = options.ranks;
  spawn.arguments = {"train", options.recipe};
  for (const auto& override : options.overrides) {
    spawn.arguments.push_back("--set");
    spawn.arguments.push_back(override);
  }
  return launch::spawn_ranks(spawn);
}

void write_status_of_rank_0(const launch::LaunchEnvironment& environment, const recipe::RunConfig& run,
                            const launch::RunStatus& status) {
  if (environment.rank == 0) launch::write_status(run.run.folder, status);
}

int train_rank(const launch::LaunchEnvironment& environment, LoadedRecipe& loaded, const launch::Lookup& lookup) {
  const auto& run = loaded.run;
  const launch::SignalFlag signals;
  launch::follow_launcher(environment);
  const auto threads = run.hardware.threads_per_rank.value_or(
      launch::automatic_threads(environment, launch::count_cores(lookup), lookup));
  at::set_num_threads(static_cast<int>(threads));
  loaded.recipe.record("hardware.threads_per_rank", threads);

  const auto seconds = [](double s) { return std::chrono::milliseconds(static_cast<int64_t>(s * 1000)); };
  const auto store = launch::make_store(environment, seconds(run.comm.init_timeout));
  if (environment.rank == 0) {
    check_fresh(run);
    std::filesystem::create_directories(run.run.folder);
    launch::write_atomically(run.run.folder + "/recipe.toml", loaded.recipe.resolved_toml());
  }
  const Log log({.rank = environment.rank, .folder = run.run.folder + "/logs", .color = wants_color(lookup)});
  auto watch = launch::watchdog_options(environment, seconds(run.comm.timeout));
  watch.abort = [&](const launch::Failure& failure) {
    log.error("{}", launch::failure_text(failure));
    write_status_of_rank_0(environment, run, {launch::RunState::kFailed, launch::failure_text(failure), 0});
  };
  launch::Watchdog watchdog(store, environment, watch);
  int64_t step = 0;
  try {
    write_status_of_rank_0(environment, run, {});
    train::Process process{environment.rank, environment.world_size, environment.local_rank, store, wants_color(lookup)};
    process.stop_signal = [&] { return signals.received(); };
    process.progress = [&](int64_t number, const char* where) {
      step = number;
      watchdog.progress(number, where);
    };
    train::Outcome outcome;
    {
      train::Trainer trainer(run, process, log);
      outcome = trainer.run();
    }
    const bool stopped = outcome.stop_signal != 0 && outcome.step < run.training.steps;
    if (stopped) log.info("stopped by {} after step {}", launch::signal_name(outcome.stop_signal), outcome.step);
    write_status_of_rank_0(environment, run,
                           {stopped ? launch::RunState::kStopped : launch::RunState::kFinished,
                            stopped ? launch::signal_name(outcome.stop_signal) : "", outcome.step});
    watchdog.stop();
    return 0;
  } catch (const std::exception& error) {
    const auto cause = watchdog.fail(error);
    const auto text = launch::failure_text(cause);
    log.error("{}", text);
    write_status_of_rank_0(environment, run, {launch::RunState::kFailed, text, step});
    watchdog.stop();
    return dynamic_cast<const ValueError*>(&error) != nullptr ? kBadInput : 1;
  }
}

int train(const Options& options) {
  const auto lookup = launch::process_environment();
  launch::LaunchEnvironment environment;
  try {
    if (options.ranks > 0) return spawn(options);
    environment = launch::detect_launch(lookup);
    auto loaded = load(options);
    return train_rank(environment, loaded, lookup);
  } catch (const std::exception& error) {
    launch::write_error_file(environment.error_file, launch::describe(error));
    const bool speaks = environment.error_file.empty() || environment.rank == 0;
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
  command->add_option("--ranks", options->ranks, "start this many ranks on this machine")->check(CLI::PositiveNumber);
  command->callback([options, &status] { status = train(*options); });
}

}  // namespace steppe::cli
