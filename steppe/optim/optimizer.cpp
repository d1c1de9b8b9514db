#include "steppe/optim/optimizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "steppe/base/error.h"

namespace steppe::optim {

Optimizer::Optimizer(const AdamWConfig& config, const BucketConfig& buckets, const StateOptions& state,
                     const ops::OpContext& context, HostLink& link,
                     std::span<const ParameterShard* const> shards)
    : config_(config), bucket_config_(buckets), state_(state), context_(context), link_(link) {
  STEPPE_CHECK_VALUE(buckets.slots >= 1, "[optimizer] slots must be at least 1, got {}", buckets.slots);
  buckets_ =
      cut_into_buckets(shards, state.on_host() ? buckets.bucket_params : std::numeric_limits<int64_t>::max());
  if (state.placement == Placement::kCpu) take_host_slots();
}

int64_t Optimizer::num_slots() const {
  return std::min(bucket_config_.slots, num_buckets());
}

int64_t Optimizer::device_staging_bytes() const {
  if (state_.placement != Placement::kStream) return 0;
  const auto moments = 2 * static_cast<int64_t>(c10::elementSize(state_.moments_dtype));
  return num_slots() * largest_bucket() *
         ((stages_master() ? 4 : 0) + moments + (state_.host_gradients ? state_.gradient_itemsize() : 0));
}

std::string Optimizer::description() const {
  if (!state_.on_host()) return {};
  const bool streams = state_.placement == Placement::kStream;
  return fmt::format("AdamW {}: {} buckets of {} parameters, {} slots; {}gradients on the {}",
                     streams ? "stream" : "cpu", num_buckets(), largest_bucket(), num_slots(),
                     state_.gradient_dtype == at::kFloat ? "" : "bf16 ",
                     state_.host_gradients ? "host" : "device");
}

void Optimizer::step(const AdamWUpdate& update) {
  if (buckets_.empty()) return;
  if (context_.counters) {
    int64_t numel = 0;
    for (const auto& bucket : buckets_) numel += bucket.numel;
    context_.counters->flops.add(FlopKind::kOptimizer, kernels::kAdamWFlops * numel);
  }
  switch (state_.placement) {
    case Placement::kResident:
      return step_resident(update);
    case Placement::kCpu:
      return step_on_cpu(update);
    case Placement::kStream:
      return step_streamed(update);
  }
}

void Optimizer::step_resident(const AdamWUpdate& update) {
  for (const auto& bucket : buckets_) {
    for (const auto& piece : bucket.pieces) {
      const auto& shard = *piece.shard;
      kernels::adamw({piece.master(), piece.of_state(shard.m), piece.of_state(shard.v), piece.of(shard.grad),
                      shard.working_is_master() ? at::Tensor{} : piece.of(shard.working)},
                     kernel_step(config_, update, *piece.segment));
    }
  }
}

}  // namespace steppe::optim
