#include "steppe/recipe/sections.h"

namespace steppe::recipe {

DispatchSection read_dispatch_section(Recipe& recipe) {
  DispatchSection dispatch;
  dispatch.kind = recipe.choice("dispatch.kind", {{"pipelined_llep", "llep", "ep"}, {}});
  dispatch.token_budget = recipe.integer_or("dispatch.token_budget", "auto").value_or(dispatch.token_budget);
  recipe.check(dispatch.token_budget >= 1, "dispatch.token_budget", "must be at least 1, or \"auto\"");
  recipe.record("dispatch.token_budget", dispatch.token_budget);
  dispatch.max_chunks = integer_at_least(recipe, "dispatch.max_chunks", 1, dispatch.max_chunks);
  dispatch.membership = recipe.choice("dispatch.membership", {{"strided", "contiguous"}, {}});
  dispatch.tile_bytes = recipe.bytes_or("dispatch.tile_bytes", "auto");
  recipe.check(dispatch.tile_bytes.value_or(1) >= 1, "dispatch.tile_bytes",
               "must be at least 1, or \"auto\"");
  dispatch.max_helpers = recipe.integer_or("dispatch.max_helpers", "auto");
  recipe.check(dispatch.max_helpers.value_or(0) >= 0, "dispatch.max_helpers",
               "must be at least 0, or \"auto\"");
  dispatch.replan_threshold = recipe.number("dispatch.replan_threshold", dispatch.replan_threshold);
  recipe.check(dispatch.replan_threshold == 0 || dispatch.replan_threshold >= 1, "dispatch.replan_threshold",
               "must be at least 1, or 0 (no chunk is planned again)");
  dispatch.imbalance_threshold = recipe.number("dispatch.imbalance_threshold", dispatch.imbalance_threshold);
  recipe.check(dispatch.imbalance_threshold >= 0, "dispatch.imbalance_threshold", "must be at least 0");
  dispatch.max_tokens_factor = recipe.number("dispatch.max_tokens_factor", dispatch.max_tokens_factor);
  recipe.check(dispatch.max_tokens_factor > 0, "dispatch.max_tokens_factor", "must be above 0");
  dispatch.min_tokens_per_gemm =
      integer_at_least(recipe, "dispatch.min_tokens_per_gemm", 1, dispatch.min_tokens_per_gemm);
  return dispatch;
}

}  // namespace steppe::recipe
