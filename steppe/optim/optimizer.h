// The update of all shards of a rank, wherever their state lives (optim/state_memory.h). One written update,
// so the placements agree to the bit: buckets are cuts of element-wise work.
//
//   resident   the device updates everything at once
//   cpu        the calling thread's CPUs update buckets in host memory, while gradients of later ones arrive
//              and working weights of earlier ones leave (ZeRO-Offload, Ren et al. 2021)
//   stream     buckets pass through `slots` staging slots on the device: state arrives, is updated there with
//              the working weights, and goes back, all three at a time
//
//   staging    cpu: on the host, slots·β·(g unless gradients are there + 2 in bf16)
//              stream: on the device, slots·β·(12 + g if gradients are on the host); bf16 moments 4 less,
//              fp32 working weights, which are the masters, 4 less
//
// g is 4, or 2 with gradients in bf16; β is bucket_params, or all trained elements if those are fewer, with
// one slot for each bucket at most.
//
// Host syncs: `cpu` waits for the gradients, as the host computes with them; `stream` none on CUDA: what
// follows on the compute stream follows the last copy.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "steppe/memory/host_arena.h"
#include "steppe/ops/context.h"
#include "steppe/optim/adamw.h"
#include "steppe/optim/bucket.h"
#include "steppe/optim/host_link.h"
#include "steppe/optim/state_memory.h"

namespace steppe::optim {

struct BucketConfig {
  int64_t bucket_params = 100'000'000;  // β
  int64_t slots = 2;
};

class Optimizer {
 public:
  // Shards, context and link must outlive it. Takes cpu's host staging.
  Optimizer(const AdamWConfig& config, const BucketConfig& buckets, const StateOptions& state,
            const ops::OpContext& context, HostLink& link, std::span<const ParameterShard* const> shards);

  // Masters, moments and working weights of every trained element. Allocates stream's staging for as long as
  // it runs (category `staging`).
  void step(const AdamWUpdate& update);

  // The host may read and write state in host memory: copies to it have ended.
  void wait_for_state() { link_.to_host.synchronize(); }

  // For the start of a run: "AdamW stream: 3 buckets of 40000000 parameters, 2 slots"; empty when resident.
  std::string description() const;
  // What could not be had as it was asked for: memory that cannot be pinned.
  const std::vector<std::string>& warnings() const { return warnings_; }

  int64_t num_buckets() const { return static_cast<int64_t>(buckets_.size()); }
  // Of step(), on the device and (held all the time) on the host.
  int64_t device_staging_bytes() const;
  int64_t host_staging_bytes() const { return host_staging_ ? host_staging_->bytes() : 0; }

 private:
  struct HostSlot {
    at::Tensor grad, working;  // undefined where the bucket's own serve
    Event arrived, left;
  };
  struct DeviceSlot {
    at::Tensor master, m, v, grad;  // the first and the last undefined where the bucket's own serve
    Event arrived, left;
  };

  void step_resident(const AdamWUpdate& update);
  void step_on_cpu(const AdamWUpdate& update);
  void step_streamed(const AdamWUpdate& update);

  int64_t num_slots() const;
  int64_t largest_bucket() const { return buckets_.empty() ? 0 : buckets_.front().numel; }
  bool stages_working() const;  // cpu, bf16
  bool stages_master() const { return !state_.masters_are_working(context_.dtype); }
  void take_host_slots();
  std::vector<DeviceSlot> make_device_slots() const;
  void fetch_gradients(const Bucket& bucket, HostSlot& slot);
  void update_on_cpu(const Bucket& bucket, HostSlot& slot, const AdamWUpdate& update);
  void fetch(const Bucket& bucket, DeviceSlot& slot);
  void update_in_slot(const Bucket& bucket, const DeviceSlot& slot, const AdamWUpdate& update) const;
  void put_back(const Bucket& bucket, DeviceSlot& slot);

  AdamWConfig config_;
  BucketConfig bucket_config_;
  StateOptions state_;
  const ops::OpContext& context_;
  HostLink& link_;
  std::vector<Bucket> buckets_;
  std::vector<std::string> warnings_;
  std::unique_ptr<memory::HostArena> host_staging_;
  std::vector<HostSlot> host_slots_;
};

}  // namespace steppe::optim
