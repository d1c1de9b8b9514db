// Every layout, with every combination of means to save memory, is sized by its budget and timed by its
// estimated work; the quickest few that fit are run dry, and the quickest of those by the time model is it.
#include <algorithm>
#include <optional>

#include "steppe/base/bytes.h"
#include "steppe/base/error.h"
#include "steppe/plan/search.h"
#include "steppe/plan/tune_candidates.h"
#include "steppe/plan/tune_text.h"

namespace steppe::plan {
namespace {

constexpr size_t kDryRuns = 3, kCloseDryRuns = 2;
constexpr double kClose = 1.1;  // a budget is at most a tenth above the dry run

struct Space {
  std::vector<Candidate> fitting;  // the quickest of each layout
  std::vector<Candidate> close;    // quicker still, if they fit: their dry run says
  int num_layouts = 0;
  std::optional<Candidate> least;  // that which lacks least
};

bool quicker(const Candidate& a, const Candidate& b) {
  return a.seconds_a_token < b.seconds_a_token;
}

void keep_quickest(std::optional<Candidate>& best, Candidate candidate) {
  if (!best || quicker(candidate, *best)) best = std::move(candidate);
}

void explore_layout(const TuneProblem& problem, const recipe::ParallelismSection& layout, RoutedSizes& routed,
                    Space& space) {
  const auto room = problem.room();
  const auto learn = [&](const Candidate& candidate) {
    if (!space.least || fullness(candidate.budget, room) < fullness(space.least->budget, room)) {
      space.least = candidate;
    }
  };
  // Whatever the host held, the device would not hold the rest.
  const auto saving = make_candidate(problem.with_host_memory(kBoundless), layout, kEveryMeans, routed);
  if (static_cast<double>(saving.budget.expected()) > kClose * static_cast<double>(room.device)) {
    return learn(saving);
  }
  std::optional<Candidate> fitting, close;
  for (const auto& means : all_means()) {
    auto candidate = make_candidate(problem, layout, means, routed);
    const double full = fullness(candidate.budget, room);
    learn(candidate);
    if (full <= 1) {
      keep_quickest(fitting, std::move(candidate));
    } else if (full <= kClose) {
      keep_quickest(close, std::move(candidate));
    }
  }
  if (close && (!fitting || quicker(*close, *fitting))) space.close.push_back(std::move(*close));
  if (fitting) space.fitting.push_back(std::move(*fitting));
}

Space explore(const TuneProblem& problem) {
  Space space;
  RoutedSizes routed(problem);
  for (const auto& layout : all_layouts(problem)) {
    ++space.num_layouts;
    explore_layout(problem, layout, routed, space);
  }
  std::stable_sort(space.fitting.begin(), space.fitting.end(), quicker);
  std::stable_sort(space.close.begin(), space.close.end(), quicker);
  return space;
}

struct Best {
  std::optional<Candidate> candidate;
  Plan plan;
  double seconds_a_token = 0;

  void try_out(const TuneProblem& problem, const PlanOptions& options, Candidate candidate_given,
               int64_t room_of_device) {
    auto made = make_plan(candidate_given.run, options);
    if (made.rank.device.bytes > room_of_device) return;
    const double seconds =
        made.step_seconds / static_cast<double>(tokens_of_step(candidate_given.run, problem.world_size));
    if (!made.fits || (candidate && seconds >= seconds_a_token)) return;
    candidate = std::move(candidate_given), plan = std::move(made), seconds_a_token = seconds;
  }
};

// The plan of the recipe as it is, where that fits: nothing worse may come out.
std::optional<Plan> plan_as_given(const recipe::RunConfig& run, const PlanOptions& options) {
  try {
    auto made = make_plan(run, options);
    if (made.fits) return made;
  } catch (const ValueError&) {  // degrees that so many ranks cannot have
  }
  return std::nullopt;
}

}  // namespace

Found tune(const recipe::RunConfig& run, const PlanOptions& options) {
  const TuneProblem problem(run, options.world_size, options.num_threads);
  const PlanOptions quick{.world_size = options.world_size, .num_threads = options.num_threads};
  const auto space = explore(problem);
  Best best;
  for (size_t i = 0; i < std::min(kDryRuns, space.fitting.size()); ++i) {
    best.try_out(problem, quick, space.fitting[i], kBoundless);
  }
  for (size_t i = 0; i < std::min(kCloseDryRuns, space.close.size()); ++i) {
    if (best.candidate && space.close[i].seconds_a_token >= best.candidate->seconds_a_token) break;
    best.try_out(problem, quick, space.close[i], best.candidate ? problem.room().device : kBoundless);
  }
  const auto given = plan_as_given(run, quick);
  const auto given_tokens = given ? static_cast<double>(tokens_of_step(run, options.world_size)) : 1;
  const auto as_asked = [&](const recipe::RunConfig& chosen, Plan made) {
    const bool is_quick = !options.record_timeline && !options.all_ranks && options.rank < 0;
    return is_quick ? std::move(made) : make_plan(chosen, options);
  };
  if (given && (!best.candidate || given->step_seconds / given_tokens < best.seconds_a_token)) {
    return {run,
            as_asked(run, *given),
            changed_keys(run),
            {best.candidate ? "the recipe as it is: no other layout takes less time by the model"
                            : "the recipe as it is: no other layout fits"}};
  }
  if (!best.candidate) throw DoesNotFit(nothing_fits(problem, *space.least));
  Found found{best.candidate->run, as_asked(best.candidate->run, std::move(best.plan)), {}, {}};
  found.changes = changed_keys(found.run);
  found.reasons = reasons(problem, *best.candidate, found.plan,
                          {space.num_layouts, static_cast<int>(space.fitting.size())});
  return found;
}

}  // namespace steppe::plan
