// Why `--tune` chose what it chose, and what would have to change where nothing fits.
#pragma once

#include <string>
#include <vector>

#include "steppe/plan/plan.h"
#include "steppe/plan/tune_candidates.h"

namespace steppe::plan {

// "parallelism.ulysses_degree = 8" and so on, as for --set: everything that was chosen.
std::vector<std::string> changed_keys(const recipe::RunConfig& run);

struct Considered {
  int layouts = 0, fitting = 0;
};
// For each means that is in use, what the run would need without it.
std::vector<std::string> reasons(const TuneProblem& problem, const Candidate& chosen, const Plan& plan,
                                 const Considered& considered);

// Names the term that breaks in `least`, which lacks least, and the smallest changes that would help, each
// by itself: more ranks, a shorter length, more host memory.
std::string nothing_fits(const TuneProblem& problem, const Candidate& least);

}  // namespace steppe::plan
