// Which parameters are trained unlike the rest: frozen ones, and groups with a learning rate or a weight
// decay of their own. Patterns are shell globs over whole parameter names; `*` also matches dots:
// "model.embed_tokens.weight", "*.mlp.experts.*", "*norm.weight".
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace steppe::optim {

struct ParameterGroup {
  std::vector<std::string> match;
  std::optional<double> lr;            // the peak of the schedule, for these
  std::optional<double> weight_decay;  // of vectors too
};

struct ParameterRules {
  double lr = 1;                    // the peak for everybody else
  std::vector<std::string> freeze;  // wins over groups
  std::vector<ParameterGroup> groups;

  bool empty() const { return freeze.empty() && groups.empty(); }
};

// How one parameter is updated.
struct Treatment {
  bool frozen = false;                 // no update, no decay, no part in the gradient norm
  double lr_scale = 1;                 // of the step's learning rate
  std::optional<double> weight_decay;  // nothing: the optimizer's, for matrices only
  bool operator==(const Treatment&) const = default;
};

Treatment treatment_of(const ParameterRules& rules, std::string_view name);

// ValueError when a pattern matches none of `names`, when two groups claim one parameter, or when all
// parameters are frozen. Names of all ranks, so that every rank agrees.
void check_rules(const ParameterRules& rules, std::span<const std::string> names);

}  // namespace steppe::optim
