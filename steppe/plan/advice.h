// What would have to change where a run does not fit: keys of its recipe, each of them for what the peak is
// made of, until a dry run fits or none is left.
#pragma once

#include <string>
#include <vector>

#include "steppe/plan/plan.h"

namespace steppe::plan {

struct Advice {
  std::vector<std::string> changes;  // "optimizer.placement = \"stream\"", as for --set
  bool is_enough = false;            // the run with all of them, run dry, fits
  std::string text;                  // a line that says so, or what else would help
};

// For a plan that does not fit. Runs dry once for every change: seconds.
Advice advise(const recipe::RunConfig& run, const Plan& plan, const PlanOptions& options);

// The first of the changes; empty where only fewer tokens, more ranks or more memory help.
std::vector<std::string> first_change(const recipe::RunConfig& run, const Plan& plan);

}  // namespace steppe::plan
