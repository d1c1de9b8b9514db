// Runs by chance, the same every time, for tests of the plan.
#pragma once

#include <cstdint>
#include <random>

#include "tests/plan/planned_run.h"

namespace steppe::testing {

class RandomRuns {
 public:
  explicit RandomRuns(uint32_t seed) : random_(seed) {}

  PlannedRun large();  // up to 64 ranks: for the dry run alone
  PlannedRun small();  // up to four ranks of a model that a CPU trains in a moment

 private:
  int64_t pick(int64_t least, int64_t most);
  int64_t divisor(int64_t power_of_two);
  void set_operators(PlannedRun& run);
  void set_where_things_live(PlannedRun& run);

  std::mt19937 random_;
};

}  // namespace steppe::testing
