#include "cli/run_folder.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/launch/exit_report.h"
#include "cli/run_lock.h"
#include "steppe/base/error.h"
#include "steppe/checkpoint/native_folder.h"
#include "steppe/recipe/document.h"
#include "steppe/train/resume.h"

namespace steppe::cli {
namespace {

namespace fs = std::filesystem;

// Keys whose values are others in the recipe kept in a folder than here, with both; "" is none. Nothing where
// the file is no recipe.
using Differences = std::map<std::string, std::array<std::string, 2>>;
std::optional<Differences> differences(const fs::path& kept, const std::string& resolved) {
  std::ifstream file(kept);
  if (!file.good()) return std::nullopt;
  std::ostringstream text;
  text << file.rdbuf();
  Differences values;
  try {
    for (const auto& [side, toml] : {std::pair(0, text.str()), std::pair(1, resolved)}) {
      const auto document = recipe::Document::parse(toml, kept.string());
      for (const auto& entry : document.entries()) values[entry.key][side] = recipe::to_toml(entry.value);
    }
  } catch (const ValueError&) {
    return std::nullopt;
  }
  std::erase_if(values, [](const auto& item) { return item.second[0] == item.second[1]; });
  values.erase("hardware.threads_per_rank");  // follows from the machine
  return values;
}

bool same_recipe(const fs::path& kept, const std::string& resolved) {
  const auto values = differences(kept, resolved);
  return values && values->empty();
}

// "training.steps (3000 there, 3 here)", of the first few.
std::string described(const Differences& values) {
  constexpr size_t kListed = 3;
  std::vector<std::string> parts;
  for (const auto& [key, of] : values) {
    const auto said = [](const std::string& value) { return value.empty() ? std::string("nothing") : value; };
    if (parts.size() < kListed)
      parts.push_back(fmt::format("{} ({} there, {} here)", key, said(of[0]), said(of[1])));
  }
  if (values.size() > kListed) parts.push_back(fmt::format("{} more", values.size() - kListed));
  return fmt::format("{}", fmt::join(parts, ", "));
}

// Why a folder with metrics and no checkpoint cannot be taken.
std::string why_taken(const recipe::RunConfig& run, const std::string& resolved) {
  if (run.checkpoint.resume != "auto") return ", and checkpoint.resume is \"never\"";
  const auto values = differences(fs::path(run.run.folder) / "recipe.toml", resolved);
  return fmt::format(" of another recipe{}, and no complete checkpoint in {}",
                     values ? ", which differs in " + described(*values) : "", run.checkpoint.folder);
}

bool holds_metrics(const recipe::RunConfig& run) {
  std::error_code error;
  const auto size = fs::file_size(fs::path(run.run.folder) / "metrics.jsonl", error);
  return !error && size > 0;
}

// The last step of the run that goes on here.
std::optional<int64_t> finished_step(const recipe::RunConfig& run) {
  if (run.checkpoint.resume != "auto") return std::nullopt;
  const auto complete = checkpoint::look_into(run.checkpoint.folder).complete;
  return complete.empty() ? std::nullopt : std::optional(complete.back().step);
}

bool goes_on(const recipe::RunConfig& run) {
  return finished_step(run).has_value();
}

// Of a run that has nothing left to do the folder keeps the recipe that it was made with.
bool keeps_its_recipe(const recipe::RunConfig& run) {
  std::error_code error;
  return finished_step(run) >= run.training.steps &&
         fs::exists(fs::path(run.run.folder) / "recipe.toml", error);
}

bool holds_a_run(const recipe::RunConfig& run) {
  try {
    launch::read_status(run.run.folder);
    return true;
  } catch (const std::exception&) {
    return goes_on(run);
  }
}

// Files that no run leaves, nor whoever starts one.
std::vector<std::string> other_files(const fs::path& folder, const std::string& resolved) {
  constexpr std::array<std::string_view, 10> kOurs = {
      "status.json", "metrics.jsonl", "metrics.jsonl.old", "tensorboard", "logs", "checkpoints",
      "timeline",    "save",          "report.html",       "plan.json"};
  constexpr std::array<std::string_view, 4> kOutput = {".out", ".err", ".log", ".txt"};
  std::vector<std::string> others;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const auto name = it->path().filename().string();
    const auto extension = it->path().extension().string();
    const bool ours = std::ranges::find(kOurs, name) != kOurs.end() || name.starts_with("status.json.") ||
                      (name.starts_with("recipe.toml") && same_recipe(folder / "recipe.toml", resolved));
    const bool output = std::ranges::find(kOutput, extension) != kOutput.end() || name.starts_with('.');
    if (!ours && !output) others.push_back(name);
  }
  std::ranges::sort(others);
  return others;
}

void check_other_files(const recipe::RunConfig& run, const std::string& resolved) {
  auto others = other_files(run.run.folder, resolved);
  constexpr size_t kListed = 5;
  const size_t count = others.size();
  others.resize(std::min(count, kListed));
  STEPPE_CHECK_VALUE(count == 0,
                     "[train] run.folder = \"{}\" holds files that are not a run's: {}{}. Name another with "
                     "--set run.folder=…, or leave them where they are with --beside-other-files",
                     run.run.folder, fmt::join(others, ", "),
                     count > kListed ? fmt::format(" and {} more", count - kListed) : "");
}

void check_contents(const recipe::RunConfig& run, const std::string& resolved, OtherFiles others) {
  if (others == OtherFiles::kRefuse && !holds_a_run(run)) check_other_files(run, resolved);
  auto own = run;
  own.checkpoint.load.reset();
  train::find_start(own);  // throws where checkpoints are there, and all damaged
  if (!holds_metrics(run) || goes_on(run)) return;
  const fs::path folder = run.run.folder;
  STEPPE_CHECK_VALUE(run.checkpoint.resume == "auto" && same_recipe(folder / "recipe.toml", resolved),
                     "[train] {} holds a run already{}: name another with --set run.folder=…, or remove it",
                     run.run.folder, why_taken(run, resolved));
}

}  // namespace

void check_run_folder(const recipe::RunConfig& run, const std::string& resolved, OtherFiles others) {
  RunLock::check_free(run.run.folder);
  check_contents(run, resolved, others);
}

void claim_run_folder(const recipe::RunConfig& run, const std::string& resolved, OtherFiles others) {
  check_run_folder(run, resolved, others);
  const fs::path folder = run.run.folder;
  std::error_code error;
  fs::create_directories(folder, error);
  STEPPE_CHECK(!error, "[train] cannot make run.folder {}: {}", run.run.folder, error.message());
  static const RunLock until_the_process_ends(run.run.folder);
  check_contents(run, resolved, others);  // what a job that was on its way out left
  const auto set_aside = [&](const std::string& name) {
    fs::rename(folder / name, folder / (name + ".old"), error);
    STEPPE_CHECK(!error, "[train] cannot set {}/{} aside: {}", run.run.folder, name, error.message());
  };
  if (holds_metrics(run) && !goes_on(run)) set_aside("metrics.jsonl");
  if (!holds_a_run(run) && fs::exists(folder / "recipe.toml", error) &&
      !same_recipe(folder / "recipe.toml", resolved))
    set_aside("recipe.toml");
  if (!keeps_its_recipe(run)) launch::write_atomically((folder / "recipe.toml").string(), resolved);
}

}  // namespace steppe::cli
