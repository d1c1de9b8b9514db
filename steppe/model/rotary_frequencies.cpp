#include <algorithm>
#include <cmath>
#include <numbers>

#include "steppe/model/config.h"

namespace steppe::model {
namespace {

// Frequencies are worked out in fp64 and rounded once; transformers works in fp32, a few roundings away.
std::vector<double> plain_frequencies(const ModelConfig& config) {
  std::vector<double> inverse(config.head_dim / 2);
  for (size_t i = 0; i < inverse.size(); ++i) {
    inverse[i] =
        std::pow(config.rope_theta, -2.0 * static_cast<double>(i) / static_cast<double>(config.head_dim));
  }
  return inverse;
}

double trained_length(const ModelConfig& config) {
  const int64_t original = config.rope_scaling.original_max_position_embeddings;
  return static_cast<double>(original > 0 ? original : config.max_position_embeddings);
}

// Long waves are stretched, short ones kept, those between blended.
void scale_llama3(const ModelConfig& config, std::vector<double>& inverse) {
  const auto& r = config.rope_scaling;
  const double length = trained_length(config);
  for (double& f : inverse) {
    const double turns = length * f / (2 * std::numbers::pi);  // within the trained length
    if (turns < r.low_freq_factor) {
      f /= r.factor;
    } else if (turns <= r.high_freq_factor) {
      const double smooth = (turns - r.low_freq_factor) / (r.high_freq_factor - r.low_freq_factor);
      f = (1 - smooth) * f / r.factor + smooth * f;
    }
  }
}

// The pair (a real number) that turns `rotations` times within the trained length.
double correction_pair(const ModelConfig& config, double rotations) {
  return static_cast<double>(config.head_dim) *
         std::log(trained_length(config) / (rotations * 2 * std::numbers::pi)) /
         (2 * std::log(config.rope_theta));
}

// From extrapolation (kept) to interpolation (stretched), linearly between two pairs.
void scale_yarn(const ModelConfig& config, std::vector<double>& inverse) {
  const auto& r = config.rope_scaling;
  double low = correction_pair(config, r.beta_fast), high = correction_pair(config, r.beta_slow);
  if (r.truncate) low = std::floor(low), high = std::ceil(high);
  low = std::max(low, 0.0), high = std::min(high, static_cast<double>(config.head_dim - 1));
  if (low == high) high += 0.001;
  for (size_t i = 0; i < inverse.size(); ++i) {
    const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    inverse[i] = inverse[i] / r.factor * ramp + inverse[i] * (1 - ramp);
  }
}

double yarn_attention_factor(const RopeScaling& r) {
  if (r.attention_factor) return *r.attention_factor;
  const auto scale = [&](double mscale) {
    return r.factor <= 1 ? 1.0 : 0.1 * mscale * std::log(r.factor) + 1;
  };
  if (r.mscale != 0 && r.mscale_all_dim != 0) return scale(r.mscale) / scale(r.mscale_all_dim);
  return scale(1);
}

}  // namespace

RotaryFrequencies rotary_frequencies(const ModelConfig& config) {
  auto inverse = plain_frequencies(config);
  RotaryFrequencies out;
  switch (config.rope_scaling.kind) {
    case RopeKind::kDefault:
      break;
    case RopeKind::kLinear:
      for (double& f : inverse) f /= config.rope_scaling.factor;
      break;
    case RopeKind::kLlama3:
      scale_llama3(config, inverse);
      break;
    case RopeKind::kYarn:
      scale_yarn(config, inverse);
      out.attention_factor = yarn_attention_factor(config.rope_scaling);
      break;
  }
  out.inverse.assign(inverse.begin(), inverse.end());
  return out;
}

}  // namespace steppe::model
