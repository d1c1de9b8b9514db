#include "steppe/optim/parameter_rules.h"

#include <fnmatch.h>

#include <algorithm>

#include "steppe/base/error.h"

namespace steppe::optim {
namespace {

bool matches(const std::string& pattern, const std::string& name) {
  return fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
}

bool matches_any(const std::vector<std::string>& patterns, const std::string& name) {
  return std::ranges::any_of(patterns, [&](const auto& pattern) { return matches(pattern, name); });
}

void check_patterns(const std::vector<std::string>& patterns, std::span<const std::string> names,
                    std::string_view key) {
  for (const auto& pattern : patterns) {
    const bool used = std::ranges::any_of(names, [&](const auto& name) { return matches(pattern, name); });
    STEPPE_CHECK_VALUE(used, "[optimizer] {}: \"{}\" must match a parameter, of which there are {}: {}, …",
                       key, pattern, names.size(), names.empty() ? "none" : names.front());
  }
}

}  // namespace

Treatment treatment_of(const ParameterRules& rules, std::string_view given_name) {
  const std::string name(given_name);
  Treatment treatment;
  treatment.frozen = matches_any(rules.freeze, name);
  for (const auto& group : rules.groups) {
    if (!matches_any(group.match, name)) continue;
    if (group.lr) treatment.lr_scale = *group.lr / rules.lr;
    treatment.weight_decay = group.weight_decay;
    break;
  }
  return treatment;
}

void check_rules(const ParameterRules& rules, std::span<const std::string> names) {
  check_patterns(rules.freeze, names, "optimizer.freeze");
  for (size_t g = 0; g < rules.groups.size(); ++g) {
    check_patterns(rules.groups[g].match, names, fmt::format("optimizer.groups[{}].match", g));
  }
  bool any_trained = names.empty();
  for (const auto& name : names) {
    any_trained = any_trained || !matches_any(rules.freeze, name);
    std::vector<size_t> claims;
    for (size_t g = 0; g < rules.groups.size(); ++g) {
      if (matches_any(rules.groups[g].match, name)) claims.push_back(g);
    }
    STEPPE_CHECK_VALUE(claims.size() <= 1,
                       "[optimizer] {} must be in one group, but optimizer.groups[{}] and [{}] match it",
                       name, claims[0], claims[1]);
  }
  STEPPE_CHECK_VALUE(any_trained, "[optimizer] optimizer.freeze must leave something to train");
}

}  // namespace steppe::optim
