// The units' gradient accumulators between the backward passes that add to them. fp32 ones that live on the
// device are added to where they are. Where they live in host memory (optimizer.gradients = "host"), a
// unit's accumulators are on the device from take() to give_back() only: zeros on the step's first visit,
// brought back from the host on later ones, in category `grads`. They leave as soon as the visit is over, and
// for the last time when they are final: summed over the replicas, their squares added up.
//
//   layer l works on its units          brought back: those of layer l-1, by prefetch()
//                                       leaving: those given back last
//
// At most two buffers leave at a time: giving back a third waits for the oldest one's copy and releases it,
// as do release_left() and finish() for all. The additions and their order are the same wherever accumulators
// live, so the bits are.
//
// In bf16 (training.gradient_dtype) a visit adds to fp32 copies (category `grads`), widened from the
// accumulators when they are taken and rounded into them, once, when they are given back. On the host nothing
// but those copies is on the device in between. Where the caller adds to what is stored itself
// (take_as_stored: experts, whose products are many and large), each addition rounds.
//
// Collective over a unit's replicas: give_back() of a replicated unit's last visit, and finish().
#pragma once

#include <cstdint>
#include <deque>
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

  // The accumulation of one step: all accumulators start from zero. square_sums_U (fp64, zeros, one per unit)
  // receives Σ grad² of what is trained of each unit's shard, once its gradient is final. Left without
  // finish(), by an exception, it waits for the copies under way and releases everything.
  class StepScope {
   public:
    StepScope(GradientStore& store, at::Tensor square_sums_U);
    ~StepScope();
    StepScope(const StepScope&) = delete;
    StepScope& operator=(const StepScope&) = delete;

   private:
    GradientStore& store_;
  };

  void begin_micro_batch(bool is_last) { is_last_micro_batch_ = is_last; }
  // The unit is taken soon: on later visits its accumulators start to come back.
  void prefetch(const model::WeightUnit& unit);
  // fp32 accumulators on the device, to add to: unit.grad(), or its like.
  at::Tensor take(const model::WeightUnit& unit);
  // The same in the dtype in which they are stored.
  at::Tensor take_as_stored(const model::WeightUnit& unit);
  // Whether take() gives copies, which give_back() rounds.
  bool widens() const { return weights_.state_options().gradient_dtype != at::kFloat; }
  // `is_last_visit`: nothing adds to the unit again in this micro-batch.
  void give_back(model::WeightUnit& unit, bool is_last_visit = true);
  void release_left() { release_left(0); }
  // All gradients are final, each where it lives, and so are their squares.
  void finish();

 private:
  // Of a unit in this step; all but `wide` in host memory only.
  struct Visit {
    at::Tensor wide;  // fp32, of a unit that is taken, where its accumulators are bf16
    at::Tensor flat;  // on the device
    Event arrived, left;
    bool taken = false;
    bool again = false;  // there is something in host memory to add to
  };
  struct Leaving {
    at::Tensor flat;
    Event left;
  };

  size_t index_of(const model::WeightUnit& unit) const { return &unit - weights_.units().data(); }
  bool on_host() const { return weights_.state_options().host_gradients; }
  at::Tensor buffer_of(const model::WeightUnit& unit, at::ScalarType dtype) const;
  at::Tensor buffer_of(const model::WeightUnit& unit) const;
  void bring_back(const model::WeightUnit& unit, Visit& visit);
  void round_back(model::WeightUnit& unit, Visit& visit);
  void make_final(model::WeightUnit& unit, const at::Tensor& flat);
  void release_left(size_t but);
  void abandon();

  const ops::OpContext& context_;
  model::ModelWeights& weights_;
  optim::HostLink& link_;
  at::Tensor square_sums_U_;  // defined: within a step
  bool is_last_micro_batch_ = false;
  std::vector<Visit> visits_;  // by unit
  std::deque<Leaving> leaving_;
};

}  // namespace steppe::train
