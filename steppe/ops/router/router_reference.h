// The oracle of the router: softmax, the weights at given ids, and every gradient, in fp64 by autograd.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace steppe::ops {

struct RouterReference {  // fp64
  at::Tensor scores_NE, weights_Nk;
  at::Tensor dx_NH, dweight_EH;  // of ⟨weights, dweights⟩
};

// Arguments of any floating dtype.
RouterReference router_reference(const at::Tensor& x_NH, const at::Tensor& weight_EH,
                                 const at::Tensor& ids_Nk, bool normalize, const at::Tensor& dweights_Nk);

// The k experts of the largest scores + bias, one after another; of equals the first.
std::vector<int32_t> top_k_reference(const at::Tensor& scores_NE, const at::Tensor& bias_E, int64_t top_k);

}  // namespace steppe::ops
