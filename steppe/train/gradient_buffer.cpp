#include "steppe/train/gradient_buffer.h"

#include "steppe/comm/collectives.h"
#include "steppe/kernels/pointwise.h"
#include "steppe/memory/scope.h"

namespace steppe::train {

using memory::Category;

GradientBuffer::GradientBuffer(const ops::OpContext& context, model::WeightUnit& unit,
                               comm::Communicator& group)
    : unit_(&unit), group_(&group) {
  if (group.size() == 1) {
    flat_ = unit.grad();
    return;
  }
  const memory::Scope scope(Category::kGrads);
  flat_ = context.empty({unit.numel()}, at::kFloat);
  kernels::fill_zero(flat_);
}

void GradientBuffer::start_reduce(const ops::OpContext& context) {
  if (group_->size() == 1) return;
  const memory::Scope scope(Category::kStaging);
  if (context.dtype != at::kFloat) {
    const auto wire = context.empty({flat_.numel()});
    kernels::copy_cast(wire, flat_);
    flat_ = wire;
  }
  const auto scratch = context.empty({flat_.numel()}, flat_.scalar_type());
  pending_ = comm::reduce_scatter_add(*group_, unit_->grad(), flat_, scratch);
}

void GradientBuffer::finish() {
  pending_.wait();
  pending_ = {};
  flat_.reset();
}

void reduce_over_replicas(const ops::OpContext& context, model::WeightUnit& unit) {
  if (unit.replicas().size() == 1) return;
  const memory::Scope scope(Category::kStaging);
  const auto sum = context.empty({unit.shard_numel()}, at::kFloat);
  const auto scratch = context.empty({unit.numel()}, at::kFloat);
  kernels::fill_zero(sum);
  comm::reduce_scatter_add(unit.replicas(), sum, unit.grad(), scratch).wait();
  kernels::copy_cast(unit.shard().grad, sum);
}

}  // namespace steppe::train
