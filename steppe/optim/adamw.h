// AdamW over the shards that a rank owns, with fp32 masters and moments on the device (placement "resident").
// Bits do not depend on how parameters are cut into shards: see kernels/adamw.h for the written update.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

namespace steppe::optim {

struct AdamWConfig {
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8;
  double weight_decay = 0.1;  // on matrices only: segments say which
};

// A run of elements of a shard that are treated alike.
struct Segment {
  int64_t begin = 0, end = 0;
  bool decay = false;
};

// What a rank owns of one weight unit: n contiguous elements. All tensors are 1-D.
struct ParameterShard {
  at::Tensor master, m, v;        // fp32 [n]
  at::Tensor grad;                // fp32 [n], summed over everything
  at::Tensor working;             // [n] in the working dtype; the master itself in fp32 runs
  std::vector<Segment> segments;  // cover [0, n), ascending
};

struct AdamWUpdate {
  double lr = 0;
  double grad_scale = 1;  // clipping, applied inside the kernel
  int64_t step = 1;       // 1 for the first
};

void adamw_step(const AdamWConfig& config, const AdamWUpdate& update,
                std::span<const ParameterShard* const> shards);

// What gradients are multiplied by so that their global norm is at most max_norm (≤ 0: no clipping).
double clip_scale(double norm, double max_norm);

}  // namespace steppe::optim
