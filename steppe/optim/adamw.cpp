#include "steppe/optim/adamw.h"

#include "steppe/kernels/pointwise.h"

namespace steppe::optim {

kernels::AdamWStep kernel_step(const AdamWConfig& config, const AdamWUpdate& update, const Segment& segment) {
  const auto& treatment = segment.treatment;
  const double decay = treatment.weight_decay.value_or(segment.matrix ? config.weight_decay : 0.0);
  return {.lr = update.lr * treatment.lr_scale,
          .beta1 = config.beta1,
          .beta2 = config.beta2,
          .eps = config.eps,
          .weight_decay = decay,
          .grad_scale = update.grad_scale,
          .step = update.step};
}

int64_t place_states(std::vector<Segment>& segments) {
  int64_t placed = 0;
  for (auto& segment : segments) {
    segment.state_begin = placed;
    if (!segment.treatment.frozen) placed += segment.end - segment.begin;
  }
  return placed;
}

std::vector<StateRun> state_runs(const std::vector<Segment>& segments) {
  std::vector<StateRun> runs;
  for (const auto& segment : segments) {
    const bool frozen = segment.treatment.frozen;
    if (runs.empty() || runs.back().frozen != frozen) {
      runs.push_back({segment.begin, 0, segment.state_begin, frozen});
    }
    runs.back().count += segment.end - segment.begin;
  }
  return runs;
}

void add_trained_sum_of_squares(const at::Tensor& out, const at::Tensor& grad,
                                const std::vector<Segment>& segments) {
  for (size_t i = 0; i < segments.size();) {
    size_t end = i;
    while (end < segments.size() && !segments[end].treatment.frozen) ++end;
    if (end == i) {
      ++i;
      continue;
    }
    const int64_t begin = segments[i].begin;
    kernels::add_sum_of_squares(out, grad.narrow(0, begin, segments[end - 1].end - begin));
    i = end;
  }
}

double clip_scale(double norm, double max_norm) {
  // PyTorch's clip_grad_norm_ adds the same 1e-6.
  return max_norm > 0 && norm > max_norm ? max_norm / (norm + 1e-6) : 1.0;
}

}  // namespace steppe::optim
