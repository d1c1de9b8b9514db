// Does a run fit, by how much, what makes its peak: the dry run's fullest rank held against the hardware.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "steppe/base/error.h"
#include "steppe/layout/layout.h"
#include "steppe/plan/budget.h"
#include "steppe/plan/dry_run.h"
#include "steppe/plan/hardware.h"

namespace steppe::plan {

// Nothing that was looked at fits: the message names the term that breaks, and what would have to change.
struct DoesNotFit : ValueError {
  using ValueError::ValueError;
};

struct Plan {
  Hardware hardware;
  layout::LayoutConfig layout;
  DryRun rank;  // the fullest
  Budget budget;
  std::optional<offload::OutputBudgets> attention_output_bytes;  // room that they have (attention_room.h)
  std::string kept;  // a line: which layers' inputs and attention outputs are kept, and where
  int64_t reserved_bytes = 0;
  int64_t device_bytes = 0;         // the peak, and what no tensor has
  int64_t host_bytes_per_node = 0;  // what the ranks of a node hold there
  bool fits = false;
  std::string verdict;               // one line: fits or not, by how much; what to change
  std::vector<std::string> remarks;  // warnings: the guarantee, the chunk ceiling
  double step_seconds = 0;           // by the time model
};

struct PlanOptions {
  int world_size = 1;
  int rank = -1;           // -1: the fullest
  bool all_ranks = false;  // run them all, and exchange their sizes
  int num_threads = 1;
  bool record_timeline = false;
};

Plan make_plan(const recipe::RunConfig& run, const PlanOptions& options);

// For people, some thirty lines; for programs. `advice` is a line, `changes` are recipe keys as for --set.
std::string plan_text(const recipe::RunConfig& run, const Plan& plan, const std::string& advice = {});
std::string plan_json(const recipe::RunConfig& run, const Plan& plan,
                      const std::vector<std::string>& changes = {}, const std::string& advice = {});

}  // namespace steppe::plan
