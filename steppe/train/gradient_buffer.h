// Where a sharded unit's gradients accumulate during one layer's backward. With one replica that is what the
// store gives to add to; otherwise a full-size fp32 buffer (category `grads`), which is then
// reduce-scattered: in fp32, or in bf16 on the wire when the working precision is bf16, always summed in fp32
// and rank order into the accumulator, which is the store's: bf16 ones are rounded once, by finish().
#pragma once

#include "steppe/comm/collectives.h"
#include "steppe/comm/communicator.h"
#include "steppe/model/weight_unit.h"
#include "steppe/train/gradient_store.h"

namespace steppe::train {

class GradientBuffer {
 public:
  GradientBuffer() = default;
  // `group`: the unit's replicas, with a queue of its own, so that sums never stand before the gathers of
  // weights.
  GradientBuffer(const ops::OpContext& context, GradientStore& store, model::WeightUnit& unit,
                 comm::Communicator& group);
  const at::Tensor& flat() const { return flat_; }
  // Starts the reduce-scatter; collective over the group. Where there is nothing to send and accumulators are
  // bf16 it finishes, so that one layer's fp32 copies are alive at a time.
  void start_reduce(const ops::OpContext& context);
  // Finishes it, releases the buffers, and gives the accumulator back.
  void finish();

 private:
  GradientStore* store_ = nullptr;
  model::WeightUnit* unit_ = nullptr;
  comm::Communicator* group_ = nullptr;
  at::Tensor flat_, accumulator_;
  comm::PartsOfSum sum_;
};

// Sums a replicated unit's accumulators, `flat` on every replica, into this rank's shard of them: sent in
// their own dtype, summed in fp32 and rank order, rounded to it once. Once per step.
void reduce_over_replicas(const ops::OpContext& context, const model::WeightUnit& unit,
                          const at::Tensor& flat);

}  // namespace steppe::train
