// How long a step takes, roughly: to choose between layouts, not to promise.
//
// Products run at 40 % of the device's peak, transfers at 70 % of the wire and 80 % of the host link. Gathers
// and reduce-scatters of weights run beside the work, as do transfers over the link; of the exchanges that
// layers wait for (dispatch, sequence, vocabulary) half are hidden. A group that fits into a node uses the
// node's wires.
#pragma once

#include "steppe/base/counters.h"
#include "steppe/layout/layout.h"
#include "steppe/plan/hardware.h"

namespace steppe::plan {

struct StepTime {
  double compute = 0, exposed_exchange = 0, beside = 0;  // seconds; `beside` overlaps with the rest
  double total() const;
};

StepTime step_time(const Counters& counters, const layout::LayoutConfig& layout, const Hardware& hardware);

}  // namespace steppe::plan
