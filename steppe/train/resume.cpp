#include "steppe/train/resume.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>
#include <vector>

#include "steppe/base/error.h"
#include "steppe/checkpoint/native_folder.h"
#include "steppe/checkpoint/native_reader.h"
#include "steppe/checkpoint/native_restore.h"
#include "steppe/model/hugging_face_config.h"
#include "steppe/recipe/sections.h"
#include "steppe/train/agree_text.h"

namespace steppe::train {
namespace {

void check_same_run(const checkpoint::SavedRun& saved, const checkpoint::SavedRun& own,
                    const std::string& path) {
  std::string differences;
  for (const auto& [key, value] : own.facts) {
    const auto found = saved.facts.find(key);
    const std::string before = found == saved.facts.end() ? "nothing" : found->second;
    if (before == value) continue;
    differences +=
        fmt::format("{}{} = {}, this run has {}", differences.empty() ? "" : "; ", key, before, value);
  }
  STEPPE_CHECK_VALUE(
      differences.empty(),
      "[checkpoint] {} was saved with {}. A run goes on with what it began with; to start from the "
      "weights alone: checkpoint.load = \"{}\", checkpoint.load_weights_only = true, in a run.folder "
      "of its own",
      path, differences, path);
}

// The config.json may have been exchanged since: tensors of the same shapes do not make the same model.
void check_same_file(const recipe::RunConfig& run, const checkpoint::SavedRun& saved,
                     const checkpoint::SavedRun& own, const std::string& path) {
  if (saved.model_config.empty() || own.model_config.empty() || saved.model_config == own.model_config)
    return;
  const auto before = model::model_config(run.model, saved.model_config, path + "'s config.json");
  const auto differences = model::differences(before, model::model_config(run.model));
  STEPPE_CHECK_VALUE(
      differences.empty(),
      "[checkpoint] {} is of another model than {} says now: {}. A run goes on with the model that it began "
      "with; without that file it takes the shape that the checkpoint holds",
      path, model::config_file(run.model).value_or("the recipe"), fmt::join(differences, "; "));
}

// Nor do they where the recipe's own keys are others.
void check_same_keys(const recipe::RunConfig& run, const checkpoint::SavedRun& saved,
                     const std::string& path) {
  auto recipe = recipe::Recipe::parse(saved.recipe, path + "'s recipe");
  const auto section = recipe::read_model_section(recipe);
  const auto before = model::model_config(section, saved.model_config, path + "'s config.json");
  const auto differences = model::differences(before, model::model_config(run.model));
  STEPPE_CHECK_VALUE(
      differences.empty(),
      "[checkpoint] {} is of another model than the recipe's: model.{}. A run goes on with the "
      "model that it began with; to start from the weights alone: checkpoint.load = \"{}\", "
      "checkpoint.load_weights_only = true, in a run.folder of its own",
      path, fmt::join(differences, "; model."), path);
}

// Rank 0's choice; all ranks learn why there is none.
std::optional<StartPoint> agreed_start(const recipe::RunConfig& run, comm::Communicator& control,
                                       const Log& log) {
  std::string chosen, failure;
  if (control.rank() == 0) {
    try {
      checkpoint::clean(run.checkpoint.folder);
      std::vector<std::string> faults;
      const auto start = find_start(run, &faults);
      for (const auto& fault : faults) log.warning("passed over: {}", fault);
      if (start) chosen = (start->weights_only ? "w" : "e") + start->checkpoint;
    } catch (const std::exception& error) {
      failure = error.what();
    }
  }
  const auto failures = all_gather_text(control, failure);
  STEPPE_CHECK_VALUE(failures.front().empty(), "{}", failures.front());
  chosen = all_gather_text(control, chosen).front();
  if (chosen.empty()) return std::nullopt;
  return StartPoint{chosen.substr(1), chosen.front() == 'w'};
}

}  // namespace

std::optional<StartPoint> find_start(const recipe::RunConfig& run, std::vector<std::string>* faults) {
  if (run.checkpoint.resume == "auto") {
    auto contents = checkpoint::look_into(run.checkpoint.folder);
    STEPPE_CHECK_VALUE(
        !contents.complete.empty() || contents.faults.empty(),
        "[checkpoint] {} holds no complete checkpoint, and the run would begin again: {}. To have it "
        "so, remove what is damaged",
        run.checkpoint.folder, contents.faults.front());
    if (faults != nullptr) *faults = std::move(contents.faults);
    if (!contents.complete.empty()) return StartPoint{contents.complete.back().path, false};
  }
  if (!run.checkpoint.load) return std::nullopt;
  return StartPoint{checkpoint::resolve_checkpoint(*run.checkpoint.load), run.checkpoint.load_weights_only};
}

checkpoint::SavedRun saved_run(const recipe::RunConfig& run, const std::string& resolved_recipe,
                               const layout::LayoutConfig& layout, const RunFacts& facts) {
  checkpoint::SavedRun saved;
  saved.world_size = layout.world_size;
  saved.ulysses_degree = layout.ulysses_degree;
  saved.expert_degree = layout.expert_degree;
  saved.vocab_degree = layout.vocab_degree;
  saved.compute_dtype = run.model.compute_dtype;
  std::string sources;
  for (const auto& source : run.data.train)
    sources += fmt::format("{}{}:{}", sources.empty() ? "" : ", ", source.name, source.weight);
  saved.facts = {{"training.seq_length", std::to_string(run.training.seq_length)},
                 {"training.global_batch_size", std::to_string(facts.batch.global_batch_size)},
                 {"training.seed", std::to_string(run.training.seed)},
                 {"data.shuffle", run.data.shuffle ? "true" : "false"},
                 {"data.train", sources},
                 {"sequences per epoch", std::to_string(facts.sequences_per_epoch)}};
  saved.recipe = resolved_recipe;
  saved.model_config = model::config_json(run.model);
  return saved;
}

std::string keep_saved_model(recipe::RunConfig& run) {
  const auto file = model::config_file(run.model);
  std::error_code ignored;
  if (!file || std::filesystem::exists(*file, ignored)) return "";
  const auto start = find_start(run);
  if (!start) return "";
  const checkpoint::NativeReader reader(start->checkpoint);
  const auto& saved = reader.manifest().run.model_config;
  if (saved.empty()) return "";
  run.model.path.reset();
  run.model.config = saved;
  return fmt::format("{} is gone: the model's shape is that of {}", *file, reader.path());
}

Position resume(const recipe::RunConfig& run, const checkpoint::SavedRun& own, comm::Communicator& control,
                model::ModelWeights& weights, const Log& log) {
  const auto start = agreed_start(run, control, log);
  if (!start) return {};
  checkpoint::NativeReader reader(start->checkpoint);
  const auto& saved = reader.manifest().run;
  if (!start->weights_only) {
    check_same_run(saved, own, reader.path());
    check_same_file(run, saved, own, reader.path());
    if (!saved.recipe.empty()) check_same_keys(run, saved, reader.path());
  }
  checkpoint::restore(
      reader, weights,
      start->weights_only ? checkpoint::Restore::kWeightsOnly : checkpoint::Restore::kEverything);
  if (start->weights_only) {
    log.info("starts with the weights of {}, saved after step {}: moments, data and steps begin anew",
             reader.path(), saved.step);
    return {0, 0, true};
  }
  log.info("goes on from {}: step {}, saved by {} {} (ulysses {}, expert {}, vocab {})", reader.path(),
           saved.step, saved.world_size, saved.world_size == 1 ? "rank" : "ranks", saved.ulysses_degree,
           saved.expert_degree, saved.vocab_degree);
  return {saved.step, saved.tokens, true};
}

}  // namespace steppe::train
