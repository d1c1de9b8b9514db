#include "steppe/train/gradient_buffer.h"

#include "steppe/kernels/pointwise.h"
#include "steppe/memory/scope.h"

namespace steppe::train {

using memory::Category;

namespace {

// Waits for the parts, adds them and lets them go.
void add(const at::Tensor& accumulator, comm::PartsOfSum& sum) {
  sum.arriving.wait();
  if (!sum.parts.empty()) kernels::add_parts_in_order(accumulator, sum.parts);
  sum = {};
}

}  // namespace

GradientBuffer::GradientBuffer(const ops::OpContext& context, GradientStore& store, model::WeightUnit& unit,
                               comm::Communicator& group)
    : store_(&store), unit_(&unit), group_(&group), accumulator_(store.take(unit)) {
  if (group.size() == 1) {
    flat_ = accumulator_;
    return;
  }
  const memory::Scope scope(Category::kGrads);
  flat_ = context.empty({unit.numel()}, at::kFloat);
  kernels::fill_zero(flat_);
}

void GradientBuffer::start_reduce(const ops::OpContext& context) {
  if (group_->size() == 1) {
    if (store_->widens()) finish();
    return;
  }
  const memory::Scope scope(Category::kStaging);
  if (context.dtype != at::kFloat) {
    const auto wire = context.empty({flat_.numel()});
    kernels::copy_cast(wire, flat_);
    flat_ = wire;
  }
  const auto scratch = context.empty({flat_.numel()}, flat_.scalar_type());
  sum_ = comm::exchange_parts(*group_, flat_, scratch);
}

void GradientBuffer::finish() {
  add(accumulator_, sum_);
  flat_.reset();
  accumulator_.reset();
  if (store_ != nullptr) store_->give_back(*unit_);
  store_ = nullptr;
}

void reduce_over_replicas(const ops::OpContext& context, const model::WeightUnit& unit,
                          const at::Tensor& flat) {
  if (unit.replicas().size() == 1) return;
  const memory::Scope scope(Category::kStaging);
  const auto sum = context.empty({unit.shard_numel()}, at::kFloat);
  const auto scratch = context.empty({unit.numel()}, flat.scalar_type());
  kernels::fill_zero(sum);
  auto parts = comm::exchange_parts(unit.replicas(), flat, scratch);
  add(sum, parts);
  kernels::copy_cast(flat.narrow(0, unit.grad_shard_begin(), unit.shard_numel()), sum);
}

}  // namespace steppe::train
