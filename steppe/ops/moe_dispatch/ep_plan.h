// Where every row goes under plain expert parallelism: a pure host function of the route counts.
#pragma once

#include "steppe/ops/moe_dispatch/route_counts.h"
#include "steppe/ops/moe_dispatch/route_schedule.h"

namespace steppe::ops {

using EpPlan = RouteSchedule;

EpPlan plan_ep(const RouteCounts& counts, int rank, int degree);

}  // namespace steppe::ops
