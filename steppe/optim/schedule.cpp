#include "steppe/optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace steppe::optim {
namespace {

// From 1 at progress 0 to `floor` at progress 1.
double decayed(DecayKind kind, double progress, double floor) {
  progress = std::clamp(progress, 0.0, 1.0);
  const double shape =
      kind == DecayKind::kCosine ? 0.5 * (1 + std::cos(std::numbers::pi * progress)) : 1 - progress;
  return floor + (1 - floor) * shape;
}

}  // namespace

double learning_rate(const ScheduleConfig& config, int64_t step) {
  const double floor = config.min_lr_ratio;
  if (step < config.warmup_steps) {
    return config.lr * static_cast<double>(step + 1) / static_cast<double>(config.warmup_steps + 1);
  }
  const int64_t after = config.total_steps - config.warmup_steps;
  switch (config.kind) {
    case ScheduleKind::kConstant:
      return config.lr;
    case ScheduleKind::kLinear:
    case ScheduleKind::kCosine: {
      const int64_t length = std::max<int64_t>(1, config.decay_steps >= 0 ? config.decay_steps : after);
      const double progress = static_cast<double>(step - config.warmup_steps) / static_cast<double>(length);
      return config.lr *
             decayed(config.kind == ScheduleKind::kCosine ? DecayKind::kCosine : DecayKind::kLinear, progress,
                     floor);
    }
    case ScheduleKind::kWarmupStableDecay: {
      const int64_t length = std::max<int64_t>(1, config.decay_steps >= 0 ? config.decay_steps : after / 10);
      const int64_t begin = config.total_steps - length;
      if (step < begin) return config.lr;
      return config.lr *
             decayed(config.decay, static_cast<double>(step - begin) / static_cast<double>(length), floor);
    }
  }
  return config.lr;
}

}  // namespace steppe::optim
