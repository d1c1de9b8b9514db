#include "steppe/ops/moe_dispatch/route_order.h"

#include <ATen/ops/arange.h>

#include <array>

#include "steppe/kernels/permute.h"

namespace steppe::ops {

RouteOrderScratch make_order_scratch(const OpContext& context, int64_t routes) {
  RouteOrderScratch scratch{context.empty({routes}, at::kInt), context.empty({routes}, at::kInt),
                            context.empty({routes}, at::kInt)};
  if (!scratch.iota.is_meta()) at::arange_out(scratch.iota, routes);
  return scratch;
}

void order_routes(const RouteOrder& order, const RouteOrderScratch& scratch, const RouteSchedule& schedule,
                  const at::Tensor& ids_Nk) {
  const auto& blocks = schedule.to_destination_order;
  kernels::sort_routes(order.slot_of_route, order.route_of_slot, ids_Nk, schedule.first_slot_of_expert);
  if (blocks.empty()) return;
  const int64_t routes = ids_Nk.numel();
  const std::array whole{kernels::RowBlock{0, 0, routes}};
  const auto sorted = scratch.sorted.narrow(0, 0, routes), position = scratch.position.narrow(0, 0, routes),
             iota = scratch.iota.narrow(0, 0, routes);
  kernels::copy_row_blocks(sorted, order.route_of_slot, whole);
  kernels::copy_row_blocks(order.route_of_slot, sorted, blocks);
  // Where each sorted slot goes, then each route.
  kernels::copy_row_blocks(position, iota, reversed(blocks));
  kernels::copy_row_blocks(sorted, order.slot_of_route, whole);
  kernels::gather_values(order.slot_of_route, position, sorted);
}

}  // namespace steppe::ops
