// Foreign experts that a rank helps with: their weights come point to point at the beginning of a pass, their
// weight gradients go home at its end.
#pragma once

#include <vector>

#include "steppe/comm/communicator.h"
#include "steppe/ops/expert_mlp/expert_mlp.h"
#include "steppe/ops/moe_dispatch/moe_dispatch.h"

namespace steppe::ops {

// Collective over the expert group; every rank makes the same calls, with foreign experts or none.
class HelperExperts {
 public:
  // Starts to fetch. Wire: each foreign expert's weights, once to each helper. Allocates the foreign experts
  // of this rank in category `gathered`.
  HelperExperts(const DispatchLayer& layer, const DispatchPlan& plan);

  // Undefined tensors where this rank helps with none.
  const ExpertWeights& wait();
  // Zeros in category `grads`, of the dtypes of the own ones.
  ExpertGradients make_gradients(const ExpertGradients& own) const;
  // Releases the weights. Adds to `own` what the helpers of this rank's experts have computed, by
  // helper rank, then in the order its foreign experts were given. Allocates one expert's gradient, in
  // `grads`, where there is one to receive.
  void send_home(const ExpertGradients& helped, const ExpertGradients& own);

 private:
  const OpContext& context_;
  comm::Communicator& group_;
  const DispatchPlan& plan_;
  ExpertWeights weights_;
  std::vector<comm::Pending> arriving_;
};

// Own experts, then foreign ones, on rows in expert order.
struct AllExperts {
  ExpertWeights own, helped;
};
void experts_forward(const OpContext& context, const at::Tensor& y_RH, const ExpertRows& rows,
                     const AllExperts& experts, const at::Tensor& keep_gate_up_R2I, int64_t tile_rows);
// args.weights and args.grads are those of the own experts.
void experts_backward(const OpContext& context, const ExpertBackward& args, const ExpertWeights& helped,
                      const ExpertGradients& helped_grads);

}  // namespace steppe::ops
