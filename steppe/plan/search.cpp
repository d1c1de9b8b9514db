#include "steppe/plan/search.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "steppe/base/error.h"
#include "steppe/plan/limits.h"
#include "steppe/plan/most_tokens.h"
#include "steppe/train/configure.h"

namespace steppe::plan {
namespace {

// Counts that were tried, and how full the machine was: above 1 it does not fit.
class Bracket {
 public:
  explicit Bracket(int64_t most) : most_(most), bad_(most + 1) {}

  int64_t largest_good() const { return good_; }
  // A 64th more or less is beyond what anybody plans by.
  bool is_narrow() const { return good_ == most_ || bad_ - good_ <= step(); }

  void learn(int64_t count, double fullness) {
    ++num_tried_;
    if (fullness > 1) {
      bad_ = count, of_bad_ = fullness;
    } else {
      before_ = good_, of_before_ = of_good_, good_ = count, of_good_ = fullness;
    }
  }

  // Memory grows about evenly with the count: a straight line through what is known soon leads to the edge.
  int64_t next() const {
    if (good_ == 0) return 1;
    const bool is_open = bad_ > most_;
    if (is_open && before_ == 0) return std::min(64 * good_, most_);
    const bool is_slow = num_tried_ > 8 || bad_ - good_ < 2 * step();
    const double known = is_open ? of_good_ - of_before_ : of_bad_ - of_good_;
    const auto over = static_cast<double>(is_open ? good_ - before_ : bad_ - good_);
    const double more = known > 0 ? over * (1 - of_good_) / known : over;
    if (is_open) return std::clamp(good_ + static_cast<int64_t>(1.02 * more), good_ + step(), most_);
    if (is_slow) return good_ + (bad_ - good_) / 2;
    return std::clamp(good_ + static_cast<int64_t>(more), good_ + step(), bad_ - step());
  }

 private:
  int64_t step() const { return std::max<int64_t>(1, good_ / 64); }

  int64_t most_, before_ = 0, good_ = 0, bad_;
  double of_before_ = 0, of_good_ = 0, of_bad_ = 0;
  int num_tried_ = 0;
};

// The largest count ≥ 1 that fits, 0 when not even one does.
int64_t largest_that_fits(const std::function<double(int64_t)>& fullness, int64_t most) {
  Bracket bracket(most);
  while (!bracket.is_narrow()) {
    const int64_t count = bracket.next();
    bracket.learn(count, fullness(count));
  }
  return bracket.largest_good();
}

double fullness_of(const recipe::RunConfig& run, const Plan& plan) {
  const auto limits = limits_of(plan.hardware, run.hardware);
  const auto needs = needs_of(limits, plan.rank.device.bytes, plan.host_bytes_per_node);
  const auto share = [](int64_t of, int64_t whole) {
    return static_cast<double>(of) / static_cast<double>(std::max<int64_t>(1, whole));
  };
  return std::max(share(needs.device, limits.device_memory), share(needs.node, limits.node_memory));
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
        const double fullness = fullness_of(changed, plan);
        if (plan.fits) {
          found.run = std::move(changed), found.plan = std::move(plan);
        } else {
          unfit = plan.verdict;
        }
        return fullness;
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

Found longest_in_steps_of(int64_t granule, const recipe::RunConfig& run, const PlanOptions& options) {
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

}  // namespace

Found longest_context(const recipe::RunConfig& run, const PlanOptions& options, int64_t granule) {
  if (granule != 0) return longest_in_steps_of(granule, run, options);
  const int64_t degree = run.parallelism.ulysses_degree;
  for (const int64_t tokens : {1024, 64}) {
    try {
      return longest_in_steps_of(std::lcm(degree, tokens), run, options);
    } catch (const DoesNotFit&) {  // in smaller steps then
    }
  }
  return longest_in_steps_of(degree, run, options);
}

Found largest_batch(const recipe::RunConfig& run, const PlanOptions& options) {
  constexpr int64_t kMostSequences = 1 << 16;
  const int64_t most = std::min(kMostSequences, std::max<int64_t>(1, kMostTokens / run.training.seq_length));
  auto found = search(
      run, options, most,
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
