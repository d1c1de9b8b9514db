// What a rank does in a step, by sizes alone and within a few percent: enough to say which of a thousand
// layouts are worth a dry run. Rows as an even routing spreads them, foreign experts as the dispatch plans
// them for the run's routing profile; the update is exact.
#pragma once

#include "steppe/plan/budget_sizes.h"
#include "steppe/plan/time_model.h"
#include "steppe/recipe/run_config.h"

namespace steppe::plan {

StepWork estimated_work(const recipe::RunConfig& run, const Sizes& sizes);

}  // namespace steppe::plan
