// AdamW as its callers see it: what a rank owns of a weight unit, and what differs from step to step. The
// written update is kernels/adamw.h's; its bits depend neither on how parameters are cut into shards nor on
// where masters and moments live (optim/optimizer.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "steppe/kernels/adamw.h"
#include "steppe/optim/parameter_rules.h"

namespace steppe::optim {

struct AdamWConfig {
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8;
  double weight_decay = 0.1;  // on matrices only, unless a group says otherwise
};

// A run of elements of a shard that are treated alike.
struct Segment {
  int64_t begin = 0, end = 0;
  bool matrix = false;
  Treatment treatment;
  int64_t state_begin = 0;  // of its masters and moments; frozen elements have none
};

// Fills in state_begin: states lie one behind the other. Returns how many there are.
int64_t place_states(std::vector<Segment>& segments);

// What a rank owns of one weight unit: n contiguous elements, of which t are trained. All tensors are 1-D.
struct ParameterShard {
  at::Tensor master;              // fp32 [t], where the placement keeps it; or the working weights themselves
  at::Tensor m, v;                // fp32 or bf16 [t], where the placement keeps them
  at::Tensor grad;                // fp32 or bf16 [n], summed over everything; on the device or the host
  at::Tensor working;             // [n] in the working dtype, on the device
  std::vector<Segment> segments;  // cover [0, n), ascending

  bool working_is_master() const { return working.is_same(master); }
};

// Neighbouring segments that are all trained, or all frozen.
struct StateRun {
  int64_t begin = 0, count = 0;
  int64_t state_begin = 0;
  bool frozen = false;

  // Of m and v, and of masters that are apart.
  at::Tensor of_state(const at::Tensor& state) const { return state.narrow(0, state_begin, count); }
  // The weights as exact as they are known: masters, or the working weights of what is frozen.
  at::Tensor weights(const ParameterShard& shard) const {
    const bool apart = !frozen && !shard.working_is_master();
    return apart ? of_state(shard.master) : shard.working.narrow(0, begin, count);
  }
};

std::vector<StateRun> state_runs(const std::vector<Segment>& segments);

struct AdamWUpdate {
  double lr = 0;
  double grad_scale = 1;  // clipping, applied inside the kernel
  int64_t step = 1;       // 1 for the first
};

// The kernel's step for elements of that treatment.
kernels::AdamWStep kernel_step(const AdamWConfig& config, const AdamWUpdate& update, const Segment& segment);

// out[0] (fp64 [1]) += Σ grad² over what is not frozen.
void add_trained_sum_of_squares(const at::Tensor& out, const at::Tensor& grad,
                                const std::vector<Segment>& segments);

// What gradients are multiplied by so that their global norm is at most max_norm (≤ 0: no clipping).
double clip_scale(double norm, double max_norm);

}  // namespace steppe::optim
