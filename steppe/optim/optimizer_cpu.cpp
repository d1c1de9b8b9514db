#include "steppe/memory/scope.h"
#include "steppe/optim/optimizer.h"

namespace steppe::optim {

using memory::Category, memory::HostArena;

// In fp32 the working weights leave from the masters themselves.
bool Optimizer::stages_working() const {
  return context_.dtype != at::kFloat;
}

void Optimizer::take_host_slots() {
  const int64_t slots = num_slots(), numel = largest_bucket();
  const int64_t grad_bytes =
      state_.host_gradients ? 0 : HostArena::aligned(state_.gradient_itemsize() * numel);
  const int64_t working_bytes = stages_working() ? HostArena::aligned(context_.itemsize() * numel) : 0;
  host_staging_ = std::make_unique<HostArena>(
      slots * (grad_bytes + working_bytes),
      memory::HostArenaOptions{.name = "optimizer.slots of optimizer.bucket_params",
                               .category = Category::kStaging,
                               .device = context_.device,
                               .pin = state_.pin_memory,
                               .warn = [this](const std::string& warning) { warnings_.push_back(warning); }});
  host_slots_.resize(slots);
  for (auto& slot : host_slots_) {
    if (grad_bytes > 0)
      slot.grad = host_staging_->tensor(host_staging_->take(grad_bytes), {numel}, state_.gradient_dtype);
    if (working_bytes > 0) {
      slot.working = host_staging_->tensor(host_staging_->take(working_bytes), {numel}, context_.dtype);
    }
  }
}

void Optimizer::fetch_gradients(const Bucket& bucket, HostSlot& slot) {
  if (!slot.grad.defined()) return;
  CopyRun run(link_.to_host, LinkPurpose::kGradients);
  for (const auto& piece : bucket.pieces) run.add(piece.of_bucket(slot.grad), piece.of(piece.shard->grad));
  run.flush();
  slot.arrived = link_.to_host.record();
}

void Optimizer::update_on_cpu(const Bucket& bucket, HostSlot& slot, const AdamWUpdate& update) {
  CopyRun run(link_.to_device, LinkPurpose::kWeights);
  for (const auto& piece : bucket.pieces) {
    const auto& shard = *piece.shard;
    const auto master = piece.master();
    const auto refreshed = slot.working.defined() ? piece.of_bucket(slot.working) : at::Tensor{};
    kernels::adamw({master, piece.of_state(shard.m), piece.of_state(shard.v),
                    slot.grad.defined() ? piece.of_bucket(slot.grad) : piece.of(shard.grad), refreshed},
                   kernel_step(config_, update, *piece.segment));
    run.add(piece.of(shard.working), refreshed.defined() ? refreshed : master);
  }
  run.flush();
  slot.left = link_.to_device.record();
}

void Optimizer::step_on_cpu(const AdamWUpdate& update) {
  const DrainOnError guard(link_);
  const auto slots = host_slots_.size();
  const Event gradients_final = link_.compute.record();
  link_.to_host.wait(gradients_final);
  link_.to_device.wait(gradients_final);  // and the working weights read for the last time
  for (size_t b = 0; b < slots; ++b) fetch_gradients(buckets_[b], host_slots_[b]);
  if (state_.host_gradients) link_.to_host.synchronize();
  for (size_t b = 0; b < buckets_.size(); ++b) {
    auto& slot = host_slots_[b % slots];
    slot.arrived.wait();
    slot.left.wait();
    update_on_cpu(buckets_[b], slot, update);
    if (b + slots < buckets_.size()) fetch_gradients(buckets_[b + slots], slot);
  }
  link_.compute.wait(link_.to_device.record());
}

}  // namespace steppe::optim
