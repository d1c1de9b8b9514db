// steppe plan RECIPE [--set key=value …] [--world-size W] [--rank r | --all-ranks] [--json] [--timeline FILE]
//                    [--maximize context|batch | --tune]
// Exit status: 0 fits, 1 does not fit, 2 bad input.
#include <fmt/format.h>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <cstdio>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/load_recipe.h"
#include "cli/validators.h"
#include "steppe/base/error.h"
#include "steppe/plan/advice.h"
#include "steppe/plan/search.h"
#include "steppe/recipe/places.h"

namespace steppe::cli {
namespace {

constexpr int kFits = 0, kDoesNotFit = 1, kBadInput = 2;
constexpr int kMostRanks = 1 << 20;

struct Options {
  std::string recipe, timeline;
  std::vector<std::string> overrides;
  plan::PlanOptions plan;
  std::string maximize;
  bool tune = false, json = false;
};

void write_timeline(const std::string& path, const std::string& timeline) {
  std::ofstream file(path, std::ios::binary);
  file << timeline;
  file.close();
  STEPPE_CHECK(!file.fail(), "[plan] cannot write {}", path);
}

plan::Found find(const Options& options, const recipe::RunConfig& run) {
  if (options.tune) return plan::tune(run, options.plan);
  if (options.maximize == "context") return plan::longest_context(run, options.plan);
  if (options.maximize == "batch") return plan::largest_batch(run, options.plan);
  return {run, plan::make_plan(run, options.plan), {}, {}};
}

// What was found, as lines of TOML keys and comments.
void print_changes(const plan::Found& found) {
  for (const auto& change : found.changes) std::printf("%s\n", change.c_str());
  for (const auto& reason : found.reasons) std::printf("# %s\n", reason.c_str());
  if (!found.changes.empty()) std::printf("\n");
}

int show(const Options& options, const recipe::Recipe& recipe, const plan::Found& found) {
  const auto& made = found.plan;
  plan::Advice advice;
  if (!made.fits) advice = plan::advise(found.run, made, options.plan);
  if (options.json) {
    const auto& changes = made.fits ? found.changes : advice.changes;
    std::printf("%s\n", plan::plan_json(found.run, made, changes, advice.text).c_str());
  } else {
    print_changes(found);
    const auto text = recipe::with_places(recipe, advice.text);
    std::printf("%s\n", plan::plan_text(found.run, made, text).c_str());
  }
  return made.fits ? kFits : kDoesNotFit;
}

// Where a search found nothing: the plan of the recipe as it is, with what the search says.
std::string json_of_nothing(const recipe::RunConfig& run, const Options& options, const std::string& why) {
  auto json = nlohmann::ordered_json::object();
  try {
    json = nlohmann::ordered_json::parse(plan::plan_json(run, plan::make_plan(run, options.plan), {}, why));
  } catch (const ValueError& error) {  // it cannot even be run dry: a layout that so many ranks do not have
    json["error"] = fmt::format("the recipe as it is has no plan: {}", error.what());
  }
  json["fits"] = false;
  json["verdict"] = why;
  return json.dump(2);
}

int plan_recipe(Options& options, recipe::Recipe& recipe) {
  const auto run = recipe::read_run_config(recipe);
  STEPPE_CHECK_VALUE(options.plan.rank < options.plan.world_size,
                     "[plan] --rank must be below --world-size = {}, got {}", options.plan.world_size,
                     options.plan.rank);
  options.plan.num_threads = static_cast<int>(run.hardware.threads_per_rank.value_or(1));
  options.plan.record_timeline = !options.timeline.empty();
  try {
    const auto found = find(options, run);
    if (!options.timeline.empty()) write_timeline(options.timeline, found.plan.rank.timeline);
    options.plan.record_timeline = false;
    return show(options, recipe, found);
  } catch (const plan::DoesNotFit& error) {
    std::fprintf(stderr, "error: %s\n", recipe::with_places(recipe, error.what()).c_str());
    if (options.json) std::printf("%s\n", json_of_nothing(run, options, error.what()).c_str());
    return kDoesNotFit;
  } catch (const ValueError& error) {
    throw ValueError(recipe::with_places(recipe, error.what()));
  }
}

int run_plan(Options options) {
  try {
    auto recipe = load_recipe_of_any_length(options.recipe, options.overrides);
    return plan_recipe(options, recipe);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return kBadInput;
  }
}

}  // namespace

void add_plan_command(CLI::App& app, int& status) {
  auto options = std::make_shared<Options>();
  auto* command = app.add_subcommand(
      "plan",
      "whether a run fits, and what makes its peak: the training step, dry (exit status 0: fits, 1: not)");
  command->add_option("recipe", options->recipe, "a TOML file")->required();
  command->add_option("--set", options->overrides, "override a key: --set training.seq_length=131072")
      ->take_all();
  command->add_option("--world-size", options->plan.world_size, "ranks of the run")
      ->check(whole_number_from(1, kMostRanks))
      ->capture_default_str();
  auto* rank = command->add_option("--rank", options->plan.rank, "this rank (default: the fullest)")
                   ->check(whole_number_from(0, kMostRanks));
  command->add_flag("--all-ranks", options->plan.all_ranks, "run every rank; they exchange their sizes")
      ->excludes(rank);
  auto* maximize = command->add_option("--maximize", options->maximize, "the largest that fits")
                       ->check(CLI::IsMember({"context", "batch"}));
  command->add_flag("--tune", options->tune, "layout, chunks and placements that take the least time")
      ->excludes(maximize);
  command->add_flag("--json", options->json, "for programs");
  command->add_option("--timeline", options->timeline, "write every allocation of the step to this file");
  command->callback([options, &status] { status = run_plan(*options); });
}

}  // namespace steppe::cli
