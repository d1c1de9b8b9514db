#include "cli/run_folder.h"

#include <filesystem>
#include <fstream>
#include <sstream>

#include "cli/launch/exit_report.h"
#include "steppe/base/error.h"
#include "steppe/train/resume.h"

namespace steppe::cli {
namespace {

namespace fs = std::filesystem;

// Without comments, and without what follows from the machine.
std::string essence(std::istream& recipe) {
  std::string text;
  for (std::string line; std::getline(recipe, line);) {
    if (!line.starts_with('#') && !line.starts_with("threads_per_rank")) text += line + '\n';
  }
  return text;
}

bool same_recipe(const fs::path& kept, const std::string& resolved) {
  std::ifstream before(kept);
  std::istringstream now(resolved);
  return before.good() && essence(before) == essence(now);
}

bool holds_metrics(const recipe::RunConfig& run) {
  std::error_code error;
  const auto size = fs::file_size(fs::path(run.run.folder) / "metrics.jsonl", error);
  return !error && size > 0;
}

bool goes_on(const recipe::RunConfig& run) {
  if (run.checkpoint.resume != "auto") return false;
  auto own = run;
  own.checkpoint.load.reset();
  return train::find_start(own).has_value();
}

}  // namespace

void check_run_folder(const recipe::RunConfig& run, const std::string& resolved) {
  if (!holds_metrics(run) || goes_on(run)) return;
  const fs::path folder = run.run.folder;
  STEPPE_CHECK_VALUE(run.checkpoint.resume == "auto" && same_recipe(folder / "recipe.toml", resolved),
                     "[train] {} holds a run already{}: name another with --set run.folder=…, or remove it",
                     run.run.folder,
                     run.checkpoint.resume == "auto"
                         ? " of another recipe, and no complete checkpoint in " + run.checkpoint.folder
                         : ", and checkpoint.resume is \"never\"");
}

void claim_run_folder(const recipe::RunConfig& run, const std::string& resolved) {
  check_run_folder(run, resolved);
  const fs::path folder = run.run.folder;
  std::error_code error;
  fs::create_directories(folder, error);
  STEPPE_CHECK(!error, "[train] cannot make run.folder {}: {}", run.run.folder, error.message());
  if (holds_metrics(run) && !goes_on(run)) {
    fs::rename(folder / "metrics.jsonl", folder / "metrics.jsonl.old", error);
    STEPPE_CHECK(!error, "[train] cannot set {}/metrics.jsonl aside: {}", run.run.folder, error.message());
  }
  launch::write_atomically((folder / "recipe.toml").string(), resolved);
}

}  // namespace steppe::cli
