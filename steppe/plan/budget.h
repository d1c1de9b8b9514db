// The memory of a rank as a sum of terms: what persists, and the largest of the phases, which never coexist.
// Each term has a formula and the category that it bounds. Two figures: `expected` for the given routing
// profile, and `guaranteed`, which no router can exceed.
//
// `expected` is never below the dry run, and at most a tenth above it: tests/plan/budget_test.cpp. N: tokens
// of a rank's shard, S: of the row its Ulysses group shares; b: bytes a value; other letters as in
// docs/notation.md.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "steppe/memory/category.h"
#include "steppe/plan/dry_run.h"
#include "steppe/recipe/run_config.h"

namespace steppe::plan {

struct Term {
  std::string name, formula;
  memory::Category category;
  int64_t expected = 0, guaranteed = 0;
};

struct Phase {
  std::string name;
  std::vector<Term> terms;
  int64_t expected() const;
  int64_t guaranteed() const;
};

struct Budget {
  Phase persistent;
  std::vector<Phase> phases;
  Phase host;                       // of this rank, in its node's memory
  int64_t checkpoint_snapshot = 0;  // there too: the asynchronous writer's copy, where its budget holds it

  const Phase& largest() const;
  int64_t expected() const;
  int64_t guaranteed() const;
};

// Of `rank`, its peers supposed to be like it; of the options what the sizes depend on.
Budget make_budget(const recipe::RunConfig& run, int rank, const DryRunOptions& options);

}  // namespace steppe::plan
