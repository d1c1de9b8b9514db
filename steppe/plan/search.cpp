#include "steppe/plan/search.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "steppe/base/error.h"
#include "steppe/train/configure.h"

namespace steppe::plan {
namespace {

// The largest count ≥ 1 for which `fits` holds, 0 when not even one does. Monotone: doubles, then halves the
// gap.
int64_t largest_that_fits(const std::function<bool(int64_t)>& fits, int64_t most) {
  if (!fits(1)) return 0;
  int64_t good = 1, bad = most + 1;
  while (good < most) {
    const int64_t next = std::min(2 * good, most);
    if (!fits(next)) {
      bad = next;
      break;
    }
    good = next;
  }
  // A 64th more or less is beyond what anybody plans by.
  while (bad - good > std::max<int64_t>(1, good / 64)) {
    const int64_t middle = good + (bad - good) / 2;
    (fits(middle) ? good : bad) = middle;
  }
  return good;
}

// The plan of `change(count)` for the largest count that fits: what fits last is largest.
Found search(const recipe::RunConfig& run, const PlanOptions& options, int64_t most,
             const std::function<void(recipe::RunConfig&, int64_t)>& change, const char* what) {
  Found found;
  std::string unfit;
  const int64_t count = largest_that_fits(
      [&](int64_t candidate) {
        auto changed = run;
        change(changed, candidate);
        auto plan = make_plan(changed, options);
        const bool fits = plan.fits;
        if (fits) {
          found.run = std::move(changed), found.plan = std::move(plan);
        } else {
          unfit = plan.verdict;
        }
        return fits;
      },
      most);
  if (count == 0) throw DoesNotFit(fmt::format("[plan] not even the least {} fits: it {}", what, unfit));
  if (!unfit.empty()) found.reasons.push_back("more " + unfit);
  return found;
}

void one_micro_batch_a_step(recipe::RunConfig& run) {
  run.training.global_batch_size.reset();
  run.training.gradient_accumulation_steps = 1;
}

}  // namespace

Found longest_context(const recipe::RunConfig& run, const PlanOptions& options, int64_t granule) {
  constexpr int64_t kMostTokens = int64_t{1} << 26;
  const int64_t degree = run.parallelism.ulysses_degree;
  if (granule == 0) granule = std::lcm(degree, int64_t{1024});
  auto found = search(
      run, options, kMostTokens / granule,
      [granule](recipe::RunConfig& changed, int64_t count) {
        changed.training.seq_length = count * granule;
        changed.training.micro_batch_size = 1;
        one_micro_batch_a_step(changed);
      },
      "context");
  found.changes.push_back(fmt::format("training.seq_length = {}", found.run.training.seq_length));
  return found;
}

Found largest_batch(const recipe::RunConfig& run, const PlanOptions& options) {
  constexpr int64_t kMostSequences = 1 << 16;
  auto found = search(
      run, options, kMostSequences,
      [](recipe::RunConfig& changed, int64_t count) {
        changed.training.micro_batch_size = count;
        one_micro_batch_a_step(changed);
      },
      "batch");
  const auto shape = train::batch_shape(found.run, train::layout_config(found.run, options.world_size));
  found.changes = {fmt::format("training.micro_batch_size = {}", shape.micro_batch_size),
                   fmt::format("training.global_batch_size = {}", shape.global_batch_size)};
  found.reasons.push_back(fmt::format("{} tokens in one forward and backward of {} ranks",
                                      shape.global_batch_size * found.run.training.seq_length,
                                      options.world_size));
  return found;
}

}  // namespace steppe::plan
