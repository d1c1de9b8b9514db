// The order in which a chunk's routes are sent: sorted by expert, then moved by the schedule's blocks so that
// those of a destination lie together.
#pragma once

#include "steppe/ops/context.h"
#include "steppe/ops/moe_dispatch/route_schedule.h"

namespace steppe::ops {

struct RouteOrder {
  at::Tensor slot_of_route, route_of_slot;  // int32
};

// int32 room for as many routes as are ordered: undefined where the schedule moves nothing.
struct RouteOrderScratch {
  at::Tensor iota, sorted, position;
};
RouteOrderScratch make_order_scratch(const OpContext& context, int64_t routes);

// Fills `order` for ids [N, k], contiguous. Allocates nothing.
void order_routes(const RouteOrder& order, const RouteOrderScratch& scratch, const RouteSchedule& schedule,
                  const at::Tensor& ids_Nk);

}  // namespace steppe::ops
