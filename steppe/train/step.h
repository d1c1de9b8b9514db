// One optimizer step, as a page of explicit code: the layers forward, then backward, by hand. What is alive
// is what the code on the page holds. The same code trains, evaluates, and (on `meta`, over shape-only
// groups, with a given routing) predicts its own memory.
//
// Collective over all ranks; one thread issues everything. Host syncs: one exchange of sizes per step, one of
// routing counts per MoE layer and micro-batch, one of results at the end.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "steppe/comm/groups.h"
#include "steppe/data/batch_plan.h"
#include "steppe/layout/layout.h"
#include "steppe/model/decoder_layer.h"
#include "steppe/model/weights.h"
#include "steppe/offload/activation_offload.h"
#include "steppe/ops/vocab_loss/vocab_loss.h"
#include "steppe/optim/optimizer.h"
#include "steppe/train/device_batch.h"
#include "steppe/train/gradient_store.h"

namespace steppe::train {

enum class Recompute { kFull, kNone };  // keep the boundary only, or everything

struct StepConfig {
  Recompute recompute = Recompute::kFull;
  int64_t mlp_tile_tokens = 0;     // of dense and shared-expert feed-forwards; 0: by bytes
  offload::OffloadConfig offload;  // of boundaries and attention outputs
  ops::VocabLossOptions loss;
  ops::DispatchOptions dispatch;
  optim::AdamWConfig adamw;
  optim::BucketConfig buckets;  // of an optimizer whose state lives on the host
  double max_grad_norm = 1.0;   // ≤ 0: no clipping
  double bias_update_rate = 0;  // > 0: auxiliary-loss-free balancing (Wang et al. 2024)
  double balance_coeff = 0;     // of each layer's load-balancing loss; 0: none
  double router_z_coeff = 0;    // of each layer's z-loss; 0: none
  bool deterministic = true;    // the same bits on every run, on CUDA too
  bool skip_nonfinite = false;  // leave the weights alone when loss or gradient norm is not finite
};

struct StepResult {
  double loss = 0;  // mean over the global batch's target tokens, without the router's
  double balance_loss = 0, router_z_loss = 0;  // with their coefficients, summed over layers
  double grad_norm = 0;                        // before clipping
  int64_t num_tokens = 0, num_targets = 0;
  bool applied = true;                            // false: not finite, weights untouched
  std::string nonfinite;                          // where it was first seen: layer or weights, and rank
  std::vector<std::vector<int64_t>> expert_load;  // [layer][expert] over all ranks; empty for dense layers
};

struct EvaluationResult {
  double loss_sum = 0;
  int64_t num_targets = 0;
};

// Sees the loss of every token of a micro-batch: ids and losses of this rank's shard.
using TokenLossSink = std::function<void(std::span<const int64_t> token_ids, const at::Tensor& loss_n)>;

class Step {
 public:
  // Everything given must outlive the step. `routing` decides who goes where.
  Step(const StepConfig& config, const model::ModelConfig& model, const layout::RankLayout& layout,
       comm::Groups& groups, const ops::OpContext& context, model::ModelWeights& weights,
       ops::RoutingSource& routing);

  // Called as each phase of a step begins ("layer 3 backward"), so that a watchdog can tell a long step from
  // a hang.
  void on_phase(std::function<void()> call) { on_phase_ = std::move(call); }

  // Gradients of the batch into the units' accumulators, summed over everything; the first half of train().
  StepResult accumulate(std::span<const data::Microbatch> micro_batches);
  // Clipping, AdamW and the expert biases; the second half. `step` is 1 for the first update.
  void update(StepResult& result, double lr, int64_t step);
  StepResult train(std::span<const data::Microbatch> micro_batches, double lr, int64_t step);

  // Masters and moments that live in host memory may be read and written there until the next update.
  void wait_for_optimizer_state() { optimizer_.wait_for_state(); }
  // The points from which on weights, masters and moments, wherever they live, are the last update's: for
  // whoever reads them on another thread.
  std::array<Event, 2> state_events() { return {link_.compute.record(), link_.to_host.record()}; }

  const offload::ActivationOffload& offload() const { return offload_; }
  const optim::Optimizer& optimizer() const { return optimizer_; }

  EvaluationResult evaluate(std::span<const data::Microbatch> micro_batches, const TokenLossSink& sink = {});

 private:
  struct MicrobatchState;
  // Device accumulators of a step, read once at its end.
  struct Accumulators {
    at::Tensor loss_1;            // fp64
    at::Tensor square_sums_U;     // fp64, of the gradient of each weight unit
    at::Tensor nonfinite_layers;  // int64, one per layer and one for the head
    at::Tensor balance_1;         // fp32, the balance loss; undefined without one
    at::Tensor router_squares_1;  // fp64, of the routers' log-sum-exps; undefined without a z-loss
  };

  void begin_phase(std::string name);
  Accumulators make_accumulators() const;
  model::LayerCall call(int64_t layer, const MicrobatchState& state, const model::LayerWeights& weights);
  model::LayerWeights layer_weights(int64_t layer, const at::Tensor& dense_flat);
  model::LayerGradients layer_gradients(int64_t layer, const at::Tensor& dense_flat);

  at::Tensor embed(const DeviceBatch& batch);
  at::Tensor forward_layers(MicrobatchState& state, at::Tensor h_nH, bool training);
  // Loss of the final norm and the output projection; the gradient of h when training.
  at::Tensor head(MicrobatchState& state, const at::Tensor& h_nH, bool training, const TokenLossSink& sink);
  void save_attention_output(MicrobatchState& state, int64_t layer);
  void restore_attention_output(MicrobatchState& state, int64_t layer);
  void prefetch_gradients(int64_t layer);
  void backward_layers(MicrobatchState& state, const at::Tensor& dh_nH);
  void finish_gradients();
  void collect(const Accumulators& sums, StepResult& result);
  std::string first_nonfinite_gradient();
  void count_wire_bytes();
  void update_biases(const StepResult& result);

  StepConfig config_;
  const model::ModelConfig& model_;
  const layout::RankLayout& layout_;
  comm::Groups& groups_;
  const ops::OpContext& context_;
  model::ModelWeights& weights_;
  optim::HostLink link_;
  GradientStore gradients_;
  optim::Optimizer optimizer_;
  model::RotaryFrequencies frequencies_;
  model::LayerContext layer_context_;
  offload::ActivationOffload offload_;
  std::function<void()> on_phase_ = [] {};
  std::vector<std::vector<int64_t>> local_load_;  // [layer][expert], this rank's routes of the step
};

}  // namespace steppe::train
