// Learning-rate schedules: linear warm-up, then constant, linear, cosine, or warm-up-stable-decay.
#pragma once

#include <cstdint>

namespace steppe::optim {

enum class ScheduleKind { kConstant, kLinear, kCosine, kWarmupStableDecay };
enum class DecayKind { kLinear, kCosine };  // of the last phase of kWarmupStableDecay

struct ScheduleConfig {
  ScheduleKind kind = ScheduleKind::kCosine;
  double lr = 0;            // the peak
  double min_lr_ratio = 0;  // the floor, as a share of the peak
  int64_t total_steps = 1;
  int64_t warmup_steps = 0;
  int64_t decay_steps =
      -1;  // linear, cosine: −1 is total − warm-up; wsd: length of the last phase, −1 is a tenth
  DecayKind decay = DecayKind::kLinear;
};

// The learning rate of update `step` (0 is the first). Warm-up is lr·(step+1)/(warmup_steps+1): the first
// update is not lost to a rate of zero, and the peak is reached at step == warmup_steps. At total_steps the
// floor is reached.
double learning_rate(const ScheduleConfig& config, int64_t step);

}  // namespace steppe::optim
