// How long a step takes, roughly: to choose between layouts and placements, not to promise. Of one rank:
//
//   step    = passes + replicas + update
//   passes  = max(products + exchanges / 2, weights, link, host)
//   update  = max(products, link, host)
//
//   products   operations at 40 % of the device's peak
//   exchanges  dispatch, Ulysses, vocabulary: half of them are hidden behind products
//   weights    gathers of dense weights and reduce-scatters of their gradients, beside the layers
//   replicas   gradients of experts and vocabulary shards over their replicas: nothing runs beside them
//   link       bytes between host and device, the larger direction, at 80 % of the link: layer inputs,
//              attention outputs and gradients beside the passes; masters and moments, or gradients and
//              working weights, beside the update
//   host       what all ranks of a node read and write in its memory at half of its bandwidth: bytes over
//              the link, and where the host updates (optimizer.placement = "cpu") 28 a parameter: master,
//              moments and gradient read, master and moments written (20 with moments in bf16, and 2 less
//              with gradients in bf16)
//
// Wires run at 70 %, those of its node for a group that fits into one. So `stream` moves 12 bytes a parameter
// each way, 24 through the host's memory; `cpu` 4 down and 2 up, 34 through the host's memory: where many
// ranks share a host `stream` is quicker, where a slow link leads to a host of one's own `cpu` is.
#pragma once

#include "steppe/base/counters.h"
#include "steppe/layout/layout.h"
#include "steppe/plan/hardware.h"
#include "steppe/recipe/run_config.h"

namespace steppe::plan {

// What a rank does in a step.
struct StepWork {
  Counters passes, update;
  double host_update_bytes = 0;  // read and written by the host's cores
};

struct StepTime {
  double passes = 0, replicas = 0, update = 0;  // seconds
  double total() const { return passes + replicas + update; }
};

StepTime step_time(const StepWork& work, const layout::LayoutConfig& layout, const Hardware& hardware);

// Bytes of a working weight and of its gradient.
struct ItemSizes {
  int64_t working = 2, gradient = 4;
};

// Bytes that the host's cores read and write to update so many parameters; 0 where the device updates.
double host_update_bytes(const recipe::OptimizerSection& optimizer, int64_t params,
                         int64_t gradient_itemsize);
// Counted bytes of the update alone, by formula: to compare placements without a dry run.
StepWork update_work(const recipe::OptimizerSection& optimizer, int64_t params, const ItemSizes& itemsizes);

}  // namespace steppe::plan
