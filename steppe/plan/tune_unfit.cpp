#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "steppe/base/bytes.h"
#include "steppe/plan/tune_text.h"

namespace steppe::plan {
namespace {

constexpr int64_t kLengthGranule = 1024;

// Those that share most out: where they do not fit, none does.
std::vector<recipe::ParallelismSection> widest_layouts(const TuneProblem& problem) {
  constexpr size_t kTried = 16;
  auto layouts = all_layouts(problem);
  const auto width = [](const recipe::ParallelismSection& p) {
    return p.ulysses_degree * p.expert_parallel_degree * p.vocab_parallel_degree;
  };
  std::stable_sort(layouts.begin(), layouts.end(),
                   [&](const auto& a, const auto& b) { return width(a) > width(b); });
  layouts.resize(std::min(kTried, layouts.size()));
  return layouts;
}

// Of a problem that differs from the one at hand.
bool some_layout_fits(const TuneProblem& problem) {
  const auto room = problem.room();
  const auto layouts = widest_layouts(problem);
  RoutedSizes routed(problem);
  const auto means = saving_means();
  return std::any_of(layouts.begin(), layouts.end(), [&](const auto& layout) {
    return std::any_of(means.begin(), means.end(), [&](const Means& m) {
      return fullness(make_candidate(problem, layout, m, routed).budget, room) <= 1;
    });
  });
}

std::optional<std::string> more_ranks(const TuneProblem& problem) {
  for (int factor = 2; factor <= 16; factor *= 2) {
    const TuneProblem wider(problem.run, factor * problem.world_size, problem.num_threads);
    if (some_layout_fits(wider)) return fmt::format("{} ranks", wider.world_size);
  }
  return std::nullopt;
}

std::optional<std::string> shorter_length(const TuneProblem& problem) {
  const auto fits = [&](int64_t granules) {
    auto shorter = problem;
    shorter.run.training.seq_length = granules * kLengthGranule;
    return some_layout_fits(shorter);
  };
  int64_t good = 0, bad = problem.run.training.seq_length / kLengthGranule;
  while (bad - good > std::max<int64_t>(1, good / 16)) {
    const int64_t middle = good == 0 ? bad / 2 : good + (bad - good) / 2;
    if (middle == 0) break;
    if (fits(middle)) {
      good = middle;
    } else {
      bad = middle;
    }
  }
  if (good == 0) return std::nullopt;
  return fmt::format("training.seq_length = {}", good * kLengthGranule);
}

// Of a node, where that alone is short.
std::optional<std::string> more_host_memory(const TuneProblem& problem) {
  if (!problem.hardware.is_accelerator) return std::nullopt;
  const auto roomy = problem.with_host_memory(kBoundless);
  const auto room = roomy.room();
  RoutedSizes routed(roomy);
  std::optional<int64_t> least;
  for (const auto& layout : widest_layouts(roomy)) {
    for (const auto& means : saving_means()) {
      const auto budget = make_candidate(roomy, layout, means, routed).budget;
      if (budget.expected() > room.device) continue;
      least = std::min(least.value_or(INT64_MAX), budget.host.expected());
    }
  }
  if (!least) return std::nullopt;
  const double node = static_cast<double>(*least * problem.hardware.ranks_per_node) / Room::kHostShare;
  return fmt::format("hardware.host_memory = {} a node", format_bytes(static_cast<int64_t>(node)));
}

std::string largest_term(std::vector<Term> terms, const std::vector<Term>& more = {}) {
  terms.insert(terms.end(), more.begin(), more.end());
  const auto top = std::ranges::max_element(terms, {}, &Term::expected);
  return fmt::format("{} ({} = {})", format_bytes(top->expected), top->name, top->formula);
}

std::string places(const Means& means) {
  const auto where = [](bool on_host) { return on_host ? "host" : "device"; };
  return fmt::format("optimizer state on the {}, gradients on the {}, layer inputs on the {}",
                     where(means.host_state), where(means.host_gradients), where(means.host_boundaries));
}

std::string what_breaks(const TuneProblem& problem, const Candidate& least) {
  const auto& budget = least.budget;
  const auto room = problem.room();
  if (budget.expected() > room.device) {
    return fmt::format("{} on a device of {}, most of it {}",
                       format_bytes(budget.expected() + reserved_bytes(problem.hardware)),
                       format_bytes(problem.hardware.device_memory),
                       largest_term(budget.persistent.terms, budget.largest().terms));
  }
  return fmt::format("{} of the {} of host memory a rank has, most of it {}",
                     format_bytes(budget.host.expected()), format_bytes(room.host),
                     largest_term(budget.host.terms));
}

}  // namespace

std::string nothing_fits(const TuneProblem& problem, const Candidate& least) {
  const auto& p = least.run.parallelism;
  auto text = fmt::format(
      "[plan] no layout of {} ranks fits {}: that which lacks least (ulysses {}, expert {}, vocab {}; {}) "
      "needs "
      "{}",
      problem.world_size, problem.hardware.name, p.ulysses_degree, p.expert_parallel_degree,
      p.vocab_parallel_degree, places(least.means), what_breaks(problem, least));
  std::string changes;
  for (const auto& change : {more_ranks(problem), shorter_length(problem), more_host_memory(problem)}) {
    if (change) changes += (changes.empty() ? "" : ", or ") + *change;
  }
  const auto device = least.budget.expected() + reserved_bytes(problem.hardware);
  if (changes.empty()) changes = fmt::format("hardware.device_memory = {}", format_bytes(device));
  return text + "; it would fit with " + changes;
}

}  // namespace steppe::plan
