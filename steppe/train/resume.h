// Where a run begins: at its newest complete checkpoint, at one that the recipe names, or afresh.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "steppe/base/log.h"
#include "steppe/checkpoint/native_manifest.h"
#include "steppe/comm/communicator.h"
#include "steppe/data/batch_plan.h"
#include "steppe/layout/layout.h"
#include "steppe/model/weights.h"
#include "steppe/recipe/run_config.h"

namespace steppe::train {

struct StartPoint {
  std::string checkpoint;  // a checkpoint's folder
  bool weights_only = false;
};

// The newest complete checkpoint of checkpoint.folder when checkpoint.resume is "auto" and there is one, else
// what checkpoint.load names. A run that was stopped thus goes on from its own checkpoints, whatever it was
// loaded from at first. Looks at files only; `faults` receives why what looks like a checkpoint is none. A
// ValueError where all of them are damaged: to begin again is the user's decision.
std::optional<StartPoint> find_start(const recipe::RunConfig& run,
                                     std::vector<std::string>* faults = nullptr);

// Where the config.json that the recipe names is gone, and there is a checkpoint to start from: the model has
// the shape that the checkpoint holds. Every rank by itself, before anything asks for the model. Returns what
// to say of it; nothing where nothing is changed.
std::string keep_saved_model(recipe::RunConfig& run);

// What a checkpoint says of this run. `facts`: what must not change between a save and a resume, since the
// order of the data or the meaning of a step would.
struct RunFacts {
  data::BatchShape batch;
  int64_t sequences_per_epoch = 0;
};
checkpoint::SavedRun saved_run(const recipe::RunConfig& run, const std::string& resolved_recipe,
                               const layout::LayoutConfig& layout, const RunFacts& facts);

struct Position {
  int64_t step = 0;       // the last that was finished; batches, rates and the update's number follow from it
  int64_t tokens = 0;     // input tokens so far
  bool restored = false;  // weights are loaded
};

// Cleans the run's checkpoint folder of leftovers, finds the start (rank 0 decides for all) and restores from
// it. Collective over `control` and the weights' replicas. Errors: those of find_start and of the reader; a
// ValueError naming key and values when the checkpoint's run or model is another than `own`.
Position resume(const recipe::RunConfig& run, const checkpoint::SavedRun& own, comm::Communicator& control,
                model::ModelWeights& weights, const Log& log);

}  // namespace steppe::train
