#include "steppe/recipe/sections.h"

namespace steppe::recipe {

PlanSection read_plan_section(Recipe& recipe) {
  PlanSection plan;
  plan.routing_profile = recipe.text("plan.routing_profile", plan.routing_profile);
  recipe.check(!plan.routing_profile.empty(), "plan.routing_profile",
               "must be \"balanced\", \"r/h\", or the path of a run's metrics.jsonl");
  plan.allow_unfit = recipe.flag("plan.allow_unfit", plan.allow_unfit);
  return plan;
}

}  // namespace steppe::recipe
