// The folder of a run: fresh, or that of a run that goes on.
#pragma once

#include <string>

#include "steppe/recipe/run_config.h"

namespace steppe::cli {

// A folder that holds a run is not written over. It may be gone on with when checkpoint.resume is "auto" and
// there is a complete checkpoint to start from, or begun again when the same recipe ended before its first.
// ValueError naming the folder otherwise. `resolved`: the recipe, as it will be kept there.
void check_run_folder(const recipe::RunConfig& run, const std::string& resolved);

// Checks, makes the folder, keeps the recipe there. What a run without a checkpoint left of metrics.jsonl is
// set aside as metrics.jsonl.old.
void claim_run_folder(const recipe::RunConfig& run, const std::string& resolved);

}  // namespace steppe::cli
