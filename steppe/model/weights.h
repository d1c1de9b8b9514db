// All weights of a model on one rank, in units, and the views that layers compute with.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "steppe/comm/groups.h"
#include "steppe/layout/layout.h"
#include "steppe/model/config.h"
#include "steppe/model/weight_unit.h"
#include "steppe/ops/expert_mlp/expert_mlp.h"
#include "steppe/ops/feed_forward/feed_forward.h"

namespace steppe::model {

// Views into one layer's dense unit: working weights, or their fp32 gradients. Undefined where the layer has
// none.
struct DenseViews {
  at::Tensor input_norm_H, q_H, k_H, v_H, q_norm, k_norm, o_H;  // q, k, v [heads·d, H], o [H, heads·d]
  at::Tensor post_norm_H, router_EH;
  ops::FeedForwardWeights feed_forward, shared_expert;
};

class ModelWeights {
 public:
  // Lays out and allocates every unit (zero-filled: initialize, or load). Collective nowhere. `state` says
  // where the optimizer's part lives, and which parameters are trained unlike the rest; its ValueErrors come
  // before anything is allocated.
  ModelWeights(const ModelConfig& config, const layout::RankLayout& layout, comm::Groups& groups,
               const ops::OpContext& context, const optim::StateOptions& state = {});

  // Normal(0, initializer_range) for matrices, ones for norms; a value depends on the seed, the tensor's name
  // and the element only, so every layout starts from the same weights.
  void initialize(uint64_t seed);

  WeightUnit& dense(int64_t layer) { return units_[dense_[layer]]; }
  WeightUnit& experts(int64_t layer) { return units_[experts_[layer]]; }
  WeightUnit& final_norm() { return units_[final_norm_]; }
  WeightUnit& embedding() { return units_[embedding_]; }
  WeightUnit& head() { return units_[head_]; }  // the embedding itself when tied
  std::vector<WeightUnit>& units() { return units_; }
  std::vector<const optim::ParameterShard*> shards() const;  // of all units, in their order

  DenseViews dense_views(int64_t layer, const at::Tensor& flat) const;
  ops::ExpertWeights expert_weights(int64_t layer);
  // Of a unit's accumulators, by default the unit's own.
  ops::ExpertGradients expert_gradients(int64_t layer) {
    return expert_gradients(layer, experts(layer).grad());
  }
  ops::ExpertGradients expert_gradients(int64_t layer, const at::Tensor& flat);
  at::Tensor final_norm_view(const at::Tensor& flat) const { return flat.narrow(0, 0, config_.hidden_size); }
  at::Tensor table_view(const at::Tensor& flat) const;  // [v, H] of the embedding or the head
  layout::Interval vocab_interval() const { return vocab_; }

  // Balancing biases of the routers, fp32 [E] per layer; the same on every rank. Undefined for dense layers.
  std::vector<at::Tensor>& expert_biases() { return expert_biases_; }

  const optim::StateOptions& state_options() const { return state_->options(); }
  const optim::StateMemory& state_memory() const { return *state_; }

  // Per rank, from the formula: what allocate() took for weights, gradients and optimizer.
  int64_t num_local_parameters() const;

 private:
  void lay_out_dense(int64_t layer, comm::Groups& groups);
  void lay_out_experts(int64_t layer, comm::Groups& groups);
  std::vector<std::string> parameter_names() const;  // of all ranks
  void allocate(const ops::OpContext& context, const optim::StateOptions& state);

  ModelConfig config_;
  layout::Interval local_experts_, vocab_;
  std::unique_ptr<optim::StateMemory> state_;  // before what lies in it
  std::vector<WeightUnit> units_;
  std::vector<size_t> dense_, experts_;  // by layer; experts_ of a dense layer is unused
  size_t final_norm_ = 0, embedding_ = 0, head_ = 0;
  std::vector<at::Tensor> expert_biases_;
};

}  // namespace steppe::model
