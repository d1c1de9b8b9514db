#include "steppe/memory/scope.h"
#include "steppe/optim/optimizer.h"

namespace steppe::optim {

std::vector<Optimizer::DeviceSlot> Optimizer::make_device_slots() const {
  std::vector<DeviceSlot> slots(num_slots());
  const int64_t numel = largest_bucket();
  for (auto& slot : slots) {
    if (stages_master()) slot.master = context_.empty({numel}, at::kFloat);
    slot.m = context_.empty({numel}, state_.moments_dtype);
    slot.v = context_.empty({numel}, state_.moments_dtype);
    if (state_.host_gradients) slot.grad = context_.empty({numel}, state_.gradient_dtype);
  }
  return slots;
}

void Optimizer::fetch(const Bucket& bucket, DeviceSlot& slot) {
  link_.to_device.wait(slot.left);
  CopyRun state(link_.to_device, LinkPurpose::kOptimizer);
  const auto bring = [&](const at::Tensor& staged, const at::Tensor ParameterShard::*tensor) {
    if (!staged.defined()) return;
    for (const auto& piece : bucket.pieces) {
      state.add(piece.of_bucket(staged), piece.of_state(piece.shard->*tensor));
    }
  };
  bring(slot.master, &ParameterShard::master);
  bring(slot.m, &ParameterShard::m);
  bring(slot.v, &ParameterShard::v);
  state.flush();
  if (slot.grad.defined()) {
    CopyRun gradients(link_.to_device, LinkPurpose::kGradients);
    for (const auto& piece : bucket.pieces) {
      gradients.add(piece.of_bucket(slot.grad), piece.of(piece.shard->grad));
    }
    gradients.flush();
  }
  slot.arrived = link_.to_device.record();
}

void Optimizer::update_in_slot(const Bucket& bucket, const DeviceSlot& slot,
                               const AdamWUpdate& update) const {
  for (const auto& piece : bucket.pieces) {
    const auto& shard = *piece.shard;
    const bool apart = slot.master.defined();
    kernels::adamw(
        {apart ? piece.of_bucket(slot.master) : piece.master(), piece.of_bucket(slot.m),
         piece.of_bucket(slot.v), slot.grad.defined() ? piece.of_bucket(slot.grad) : piece.of(shard.grad),
         apart ? piece.of(shard.working) : at::Tensor{}},
        kernel_step(config_, update, *piece.segment));
  }
}

void Optimizer::put_back(const Bucket& bucket, DeviceSlot& slot) {
  link_.to_host.wait(link_.compute.record());
  CopyRun run(link_.to_host, LinkPurpose::kOptimizer);
  const auto back = [&](const at::Tensor& staged, const at::Tensor ParameterShard::*tensor) {
    if (!staged.defined()) return;
    for (const auto& piece : bucket.pieces)
      run.add(piece.of_state(piece.shard->*tensor), piece.of_bucket(staged));
  };
  back(slot.master, &ParameterShard::master);
  back(slot.m, &ParameterShard::m);
  back(slot.v, &ParameterShard::v);
  run.flush();
  slot.left = link_.to_host.record();
}

void Optimizer::step_streamed(const AdamWUpdate& update) {
  const memory::Scope scope(memory::Category::kStaging);
  auto slots = make_device_slots();
  // The memory of the slots was somebody else's on the compute stream, and gradients may still leave.
  link_.to_device.wait(link_.compute.record());
  link_.to_device.wait(link_.to_host.record());
  const DrainOnError guard(link_);  // before the slots go
  for (size_t b = 0; b < slots.size(); ++b) fetch(buckets_[b], slots[b]);
  for (size_t b = 0; b < buckets_.size(); ++b) {
    auto& slot = slots[b % slots.size()];
    link_.compute.wait(slot.arrived);
    update_in_slot(buckets_[b], slot, update);
    put_back(buckets_[b], slot);
    if (b + slots.size() < buckets_.size()) fetch(buckets_[b + slots.size()], slot);
  }
  link_.compute.wait(link_.to_host.record());
}

}  // namespace steppe::optim
