#include "steppe/train/gradient_store.h"

#include "steppe/base/error.h"
#include "steppe/kernels/pointwise.h"
#include "steppe/memory/scope.h"
#include "steppe/train/gradient_buffer.h"

namespace steppe::train {
namespace {

constexpr size_t kMostLeaving = 2;

}  // namespace

GradientStore::GradientStore(const ops::OpContext& context, model::ModelWeights& weights,
                             optim::HostLink& link)
    : context_(context), weights_(weights), link_(link), visits_(weights.units().size()) {}

GradientStore::~GradientStore() {
  link_.to_device.drain();
  link_.to_host.drain();
}

GradientStore::StepScope::StepScope(GradientStore& store, at::Tensor square_sums_U) : store_(store) {
  store.square_sums_U_ = std::move(square_sums_U);
  store.visits_.assign(store.visits_.size(), {});
  if (store.on_host()) return;
  for (auto& unit : store.weights_.units()) kernels::fill_zero(unit.grad());
}

GradientStore::StepScope::~StepScope() {
  if (store_.square_sums_U_.defined()) store_.abandon();
}

void GradientStore::abandon() {
  link_.to_device.drain();
  link_.to_host.drain();
  leaving_.clear();
  visits_.assign(visits_.size(), {});
  square_sums_U_.reset();
}

at::Tensor GradientStore::buffer_of(const model::WeightUnit& unit, at::ScalarType dtype) const {
  const memory::Scope scope(memory::Category::kGrads);
  return context_.empty({unit.grad_numel()}, dtype);
}

at::Tensor GradientStore::buffer_of(const model::WeightUnit& unit) const {
  return buffer_of(unit, weights_.state_options().gradient_dtype);
}

void GradientStore::bring_back(const model::WeightUnit& unit, Visit& visit) {
  visit.flat = buffer_of(unit);
  link_.to_device.wait(link_.compute.record());  // the memory was somebody else's
  link_.to_device.wait(visit.left);
  optim::CopyRun run(link_.to_device, LinkPurpose::kGradients);
  run.add(visit.flat, unit.grad());
  run.flush();
  visit.arrived = link_.to_device.record();
}

void GradientStore::prefetch(const model::WeightUnit& unit) {
  if (!on_host()) return;
  auto& visit = visits_[index_of(unit)];
  if (visit.again && !visit.flat.defined()) bring_back(unit, visit);
}

at::Tensor GradientStore::take(const model::WeightUnit& unit) {
  if (!widens()) return take_as_stored(unit);
  auto& visit = visits_[index_of(unit)];
  STEPPE_ASSERT(!visit.wide.defined(), "[gradient_store] {} was taken already", unit.name());
  visit.wide = buffer_of(unit, at::kFloat);
  if (on_host() && !visit.again) {
    visit.taken = true;
    kernels::fill_zero(visit.wide);
  } else {
    kernels::copy_cast(visit.wide, take_as_stored(unit));
    visit.flat.reset();
  }
  return visit.wide;
}

at::Tensor GradientStore::take_as_stored(const model::WeightUnit& unit) {
  if (!on_host()) return unit.grad();
  auto& visit = visits_[index_of(unit)];
  STEPPE_ASSERT(!visit.taken, "[gradient_store] {} was taken already", unit.name());
  visit.taken = true;
  if (!visit.again) {
    visit.flat = buffer_of(unit);
    kernels::fill_zero(visit.flat);
    return visit.flat;
  }
  prefetch(unit);
  link_.compute.wait(visit.arrived);
  return visit.flat;
}

void GradientStore::round_back(model::WeightUnit& unit, Visit& visit) {
  if (on_host()) visit.flat = buffer_of(unit);
  kernels::copy_cast(on_host() ? visit.flat : unit.grad(), visit.wide);
  visit.wide.reset();
}

void GradientStore::give_back(model::WeightUnit& unit, bool is_last_visit) {
  auto& visit = visits_[index_of(unit)];
  if (visit.wide.defined()) round_back(unit, visit);
  if (!on_host()) return;
  STEPPE_ASSERT(visit.taken, "[gradient_store] {} was not taken", unit.name());
  const bool is_final = is_last_micro_batch_ && is_last_visit;
  if (is_final) make_final(unit, visit.flat);
  release_left(kMostLeaving - 1);
  link_.to_host.wait(link_.compute.record());
  optim::CopyRun run(link_.to_host, LinkPurpose::kGradients);
  if (is_final) {
    run.add(unit.shard().grad, visit.flat.narrow(0, unit.grad_shard_begin(), unit.shard_numel()));
  } else {
    run.add(unit.grad(), visit.flat);
  }
  run.flush();
  visit.left = link_.to_host.record();
  leaving_.push_back({std::move(visit.flat), visit.left});
  visit.taken = false;
  visit.again = true;
}

void GradientStore::make_final(model::WeightUnit& unit, const at::Tensor& flat) {
  if (unit.kind() == model::UnitKind::kReplicated) reduce_over_replicas(context_, unit, flat);
  optim::add_trained_sum_of_squares(square_sums_U_.narrow(0, static_cast<int64_t>(index_of(unit)), 1),
                                    flat.narrow(0, unit.grad_shard_begin(), unit.shard_numel()),
                                    unit.shard().segments);
}

void GradientStore::release_left(size_t but) {
  while (leaving_.size() > but) {
    link_.compute.wait(leaving_.front().left);
    leaving_.pop_front();
  }
}

void GradientStore::finish() {
  release_left();
  for (auto& unit : weights_.units()) {
    if (!on_host()) {
      make_final(unit, unit.grad());
    } else if (!visits_[index_of(unit)].again) {
      link_.to_device.drain();  // of the last update, which may still read it
      kernels::fill_zero(unit.grad());
    }
  }
  square_sums_U_.reset();
}

}  // namespace steppe::train
