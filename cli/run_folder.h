// The folder of a run: fresh, or that of a run that goes on.
#pragma once

#include <cstdint>
#include <string>

#include "steppe/recipe/run_config.h"

namespace steppe::cli {

// A folder that holds a run is not written over. It may be gone on with when checkpoint.resume is "auto" and
// there is a complete checkpoint to start from, or begun again when the same recipe ended before its first.
// A folder that holds something else is refused as well, unless that is what a launcher's output is kept in
// (*.out, *.err, *.log, *.txt), or `others` says that the rest is to be left alone. ValueError naming the
// folder otherwise; RuntimeFailure while another job trains there. `resolved`: the recipe, as it will be kept
// there.
enum class OtherFiles : uint8_t { kRefuse, kLeaveAlone };
void check_run_folder(const recipe::RunConfig& run, const std::string& resolved,
                      OtherFiles others = OtherFiles::kRefuse);

// Checks, makes the folder, takes it for this process until it ends, keeps the recipe there, unless a run
// with nothing left to do has its own. What a run without a checkpoint left of metrics.jsonl is set aside as
// metrics.jsonl.old, a recipe.toml of somebody else's as recipe.toml.old.
void claim_run_folder(const recipe::RunConfig& run, const std::string& resolved,
                      OtherFiles others = OtherFiles::kRefuse);

}  // namespace steppe::cli
