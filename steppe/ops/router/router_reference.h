// The oracle of the router: softmax, the weights at given ids, and every gradient, in fp64 by autograd.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace steppe::ops {

struct RouterReference {  // fp64
  at::Tensor scores_NE, weights_Nk;
  double balance = 0, z = 0;     // the losses, if any
  at::Tensor dx_NH, dweight_EH;  // of ⟨weights, dweights⟩ + balance + z
};

struct RouterReferenceInput {  // of any floating dtype
  at::Tensor x_NH, weight_EH, ids_Nk;
  bool normalize = true;
  at::Tensor dweights_Nk;
  at::Tensor dscores_E{};  // as in RouterLosses
  double z_coeff = 0;
};

RouterReference router_reference(const RouterReferenceInput& in);

// The k experts of the largest scores + bias, one after another; of equals the first.
std::vector<int32_t> top_k_reference(const at::Tensor& scores_NE, const at::Tensor& bias_E, int64_t top_k);

}  // namespace steppe::ops
