// The units' fp32 gradient accumulators between the backward passes that add to them. Where they live on the
// device, taking and giving back do nothing. Where they live in host memory (optimizer.gradients = "host"), a
// unit's accumulators are on the device from take() to give_back() only: zeros on the step's first visit,
// brought back from the host on later ones, in category `grads`. They leave as soon as the visit is over, and
// for the last time when they are final: summed over the replicas, their squares added up.
//
// A buffer that leaves is released at the next give_back(), or at finish(), after waiting for its copy: at
// most one leaves while the next is in use. The additions and their order are the same in both cases, so the
// bits are. Collective over a unit's replicas: give_back() of a replicated unit's last visit, and finish().
#pragma once

#include <cstdint>
#include <vector>

#include "steppe/model/weights.h"
#include "steppe/ops/context.h"
#include "steppe/optim/host_link.h"

namespace steppe::train {

class GradientStore {
 public:
  GradientStore(const ops::OpContext& context, model::ModelWeights& weights, optim::HostLink& link);
  ~GradientStore();
  GradientStore(const GradientStore&) = delete;
  GradientStore& operator=(const GradientStore&) = delete;

  // All accumulators start from zero. square_sums_U (fp64, zeros, one per unit) receives Σ grad² of what is
  // trained of each unit's shard, once its gradient is final.
  void begin_step(at::Tensor square_sums_U);
  void begin_micro_batch(bool is_last) { is_last_micro_batch_ = is_last; }
  // unit.grad(), or its like on the device, to add to.
  at::Tensor take(const model::WeightUnit& unit);
  // `is_last_visit`: nothing adds to the unit again in this micro-batch.
  void give_back(model::WeightUnit& unit, bool is_last_visit = true);
  // All gradients are final, each where it lives, and so are their squares.
  void finish();

 private:
  size_t index_of(const model::WeightUnit& unit) const { return &unit - weights_.units().data(); }
  bool on_host() const { return weights_.state_options().host_gradients; }
  void make_final(model::WeightUnit& unit, const at::Tensor& flat);
  void release_leaving();

  const ops::OpContext& context_;
  model::ModelWeights& weights_;
  optim::HostLink& link_;
  at::Tensor square_sums_U_;
  bool is_last_micro_batch_ = false;
  // In host memory only:
  std::vector<at::Tensor> taken_;  // by unit
  std::vector<bool> visited_;      // in this step, by unit
  at::Tensor leaving_;
  Event left_;
};

}  // namespace steppe::train
