// Where a sharded unit's gradients accumulate during one layer's backward. With one replica that is the
// unit's own accumulator; otherwise a full-size fp32 buffer (category `grads`), which is then
// reduce-scattered: in fp32, or in bf16 on the wire when the working precision is bf16, always summed in fp32
// and rank order into the accumulator.
#pragma once

#include "steppe/comm/communicator.h"
#include "steppe/model/weight_unit.h"

namespace steppe::train {

class GradientBuffer {
 public:
  GradientBuffer() = default;
  // `group`: the unit's replicas, with a queue of its own, so that sums never stand before the gathers of
  // weights.
  GradientBuffer(const ops::OpContext& context, model::WeightUnit& unit, comm::Communicator& group);
  const at::Tensor& flat() const { return flat_; }
  // Starts the reduce-scatter; collective over the group.
  void start_reduce(const ops::OpContext& context);
  // Finishes it and releases the buffers.
  void finish();

 private:
  model::WeightUnit* unit_ = nullptr;
  comm::Communicator* group_ = nullptr;
  at::Tensor flat_;
  comm::Pending pending_;
};

// Sums a replicated unit's gradients over its replicas into this rank's shard. Once per step.
void reduce_over_replicas(const ops::OpContext& context, model::WeightUnit& unit);

}  // namespace steppe::train
