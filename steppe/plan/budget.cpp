#include "steppe/plan/budget.h"

#include <algorithm>

#include "steppe/plan/budget_sizes.h"
#include "steppe/plan/hardware.h"

namespace steppe::plan {
namespace {

template <class Value>
int64_t sum(const std::vector<Term>& terms, Value value) {
  int64_t total = 0;
  for (const auto& term : terms) total += term.*value;
  return total;
}

}  // namespace

int64_t Phase::expected() const {
  return sum(terms, &Term::expected);
}
int64_t Phase::guaranteed() const {
  return sum(terms, &Term::guaranteed);
}

const Phase& Budget::largest() const {
  return *std::max_element(phases.begin(), phases.end(),
                           [](const Phase& a, const Phase& b) { return a.expected() < b.expected(); });
}

int64_t Budget::expected() const {
  return persistent.expected() + largest().expected();
}

int64_t Budget::guaranteed() const {
  int64_t most = 0;
  for (const auto& phase : phases) most = std::max(most, phase.guaranteed());
  return persistent.guaranteed() + most;
}

namespace {

// Bytes of a node that the asynchronous writer may take. Where nobody says, a run takes half of what it finds
// free; free is here what the peak leaves.
int64_t writers_budget(const recipe::RunConfig& run, const Budget& budget, const DryRunOptions& options) {
  if (run.checkpoint.host_budget) return *run.checkpoint.host_budget;
  const auto hardware = hardware_of(run.hardware, options.world_size);
  const int64_t of_a_rank =
      budget.host.expected() + (hardware.is_accelerator ? 0 : budget.expected() + reserved_bytes(hardware));
  return std::max<int64_t>(0, hardware.host_memory - hardware.ranks_per_node * of_a_rank) / 2;
}

}  // namespace

Budget make_budget(const recipe::RunConfig& run, int rank, const DryRunOptions& options) {
  return budget_of(run, sizes_of(run, rank, options), options);
}

Budget budget_of(const recipe::RunConfig& run, const Sizes& s, const DryRunOptions& options) {
  Budget budget;
  budget.persistent.name = "persistent";
  Terms persistent(budget.persistent.terms);
  add_persistent(s, persistent);
  budget.phases = phases_of(s);
  if (const auto shorter = sizes_of_shorter(run, s)) {
    for (auto& phase : phases_of(*shorter)) budget.phases.push_back(std::move(phase));
  }
  budget.host.name = "host";
  Terms host(budget.host.terms);
  add_host(s, host);
  // Where there is too little, training waits while checkpoints are written.
  const int64_t snapshot = (4 + 2 * moment_bytes(s)) * owned(s) + s.b * s.frozen;
  const int64_t ranks = run.hardware.ranks_per_node.value_or(options.world_size);
  if (run.checkpoint.async && snapshot * ranks <= writers_budget(run, budget, options)) {
    budget.checkpoint_snapshot = snapshot;
  }
  return budget;
}

}  // namespace steppe::plan
