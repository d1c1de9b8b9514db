// The oracle of feed_forward: one token at a time, in fp64, differentiated by autograd.
#pragma once

#include <ATen/core/Tensor.h>

namespace steppe::ops {

struct FeedForwardReference {
  at::Tensor y_NH;                           // without what y held before
  at::Tensor dx_NH, dgate_up_2IH, ddown_HI;  // of ⟨y, dy⟩
};

// Arguments of any floating dtype, results fp64.
FeedForwardReference feed_forward_reference(const at::Tensor& x_NH, const at::Tensor& gate_up_2IH,
                                            const at::Tensor& down_HI, const at::Tensor& dy_NH);

}  // namespace steppe::ops
