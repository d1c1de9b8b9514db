#include "steppe/train/gradient_store.h"

#include "steppe/base/error.h"
#include "steppe/kernels/pointwise.h"
#include "steppe/memory/scope.h"
#include "steppe/train/gradient_buffer.h"

namespace steppe::train {

GradientStore::GradientStore(const ops::OpContext& context, model::ModelWeights& weights,
                             optim::HostLink& link)
    : context_(context),
      weights_(weights),
      link_(link),
      taken_(weights.units().size()),
      visited_(weights.units().size()) {}

GradientStore::~GradientStore() {
  link_.to_device.drain();
  link_.to_host.drain();
}

void GradientStore::begin_step(at::Tensor square_sums_U) {
  square_sums_U_ = std::move(square_sums_U);
  if (!on_host()) {
    for (auto& unit : weights_.units()) kernels::fill_zero(unit.grad());
    return;
  }
  // An exception may have ended the last step anywhere.
  link_.to_device.drain();
  link_.to_host.drain();
  leaving_.reset();
  taken_.assign(taken_.size(), {});
  visited_.assign(visited_.size(), false);
}

at::Tensor GradientStore::take(const model::WeightUnit& unit) {
  if (!on_host()) return unit.grad();
  const size_t u = index_of(unit);
  STEPPE_ASSERT(!taken_[u].defined(), "[gradient_store] {} was taken already", unit.name());
  const memory::Scope scope(memory::Category::kGrads);
  const auto flat = taken_[u] = context_.empty({unit.grad_numel()}, at::kFloat);
  if (!visited_[u]) {
    kernels::fill_zero(flat);
    visited_[u] = true;
    return flat;
  }
  link_.to_device.wait(link_.compute.record());  // the memory was somebody else's
  link_.to_device.wait(left_);
  optim::CopyRun run(link_.to_device, LinkPurpose::kGradients);
  run.add(flat, unit.grad());
  run.flush();
  link_.compute.wait(link_.to_device.record());
  return flat;
}

void GradientStore::give_back(model::WeightUnit& unit, bool is_last_visit) {
  if (!on_host()) return;
  const size_t u = index_of(unit);
  STEPPE_ASSERT(taken_[u].defined(), "[gradient_store] {} was not taken", unit.name());
  auto flat = std::move(taken_[u]);
  const bool is_final = is_last_micro_batch_ && is_last_visit;
  if (is_final) make_final(unit, flat);
  release_leaving();
  leaving_ = std::move(flat);
  link_.to_host.wait(link_.compute.record());
  optim::CopyRun run(link_.to_host, LinkPurpose::kGradients);
  if (is_final) {
    run.add(unit.shard().grad, leaving_.narrow(0, unit.grad_shard_begin(), unit.shard_numel()));
  } else {
    run.add(unit.grad(), leaving_);
  }
  run.flush();
  left_ = link_.to_host.record();
}

void GradientStore::make_final(model::WeightUnit& unit, const at::Tensor& flat) {
  if (unit.kind() == model::UnitKind::kReplicated) reduce_over_replicas(context_, unit, flat);
  optim::add_trained_sum_of_squares(square_sums_U_.narrow(0, static_cast<int64_t>(index_of(unit)), 1),
                                    flat.narrow(0, unit.grad_shard_begin(), unit.shard_numel()),
                                    unit.shard().segments);
}

void GradientStore::release_leaving() {
  link_.compute.wait(left_);
  leaving_.reset();
}

void GradientStore::finish() {
  release_leaving();
  for (auto& unit : weights_.units()) {
    if (!on_host()) {
      make_final(unit, unit.grad());
    } else if (!visited_[index_of(unit)]) {
      kernels::fill_zero(unit.grad());
    }
  }
  square_sums_U_.reset();
}

}  // namespace steppe::train
