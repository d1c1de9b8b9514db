// One decoder layer in plain ATen, differentiable by autograd, in whatever precision it is given (fp64).
#pragma once

#include <ATen/core/Tensor.h>

#include "steppe/model/decoder_layer.h"

namespace steppe::model {

struct ReferenceInput {
  const ModelConfig& config;
  int64_t layer = 0;
  const LayerWeights& weights;
  at::Tensor h_nH, cos_nh, sin_nh;
  std::span<const int64_t> document_bounds;
  at::Tensor bias_E;  // balancing bias, or undefined
  at::Tensor ids_nk;  // int64: a given routing; undefined: the largest scores
  ops::RouterLosses router_losses{};
};

struct ReferenceOutput {
  at::Tensor out_nH, ids_nk, weights_nk;  // no routing in a dense layer
  at::Tensor router_loss;                 // of router_losses; undefined in a dense layer
};

ReferenceOutput decoder_layer_reference(const ReferenceInput& input);

}  // namespace steppe::model
