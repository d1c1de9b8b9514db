// Causal attention within documents, forward and backward, by loops in fp64: no exchange, no blocks, no
// log-sum-exp.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

namespace steppe::ops {

struct AttentionReference {
  at::Tensor out_Shd, dq_Shd, dk_Shd, dv_Shd;  // fp64
};

// q, dout [S, hq, d] and k, v [S, hk, d] of any dtype; query head i reads key-value head i / (hq/hk).
AttentionReference attention_reference(const at::Tensor& q_Shd, const at::Tensor& k_Shd,
                                       const at::Tensor& v_Shd, const at::Tensor& dout_Shd,
                                       std::span<const int64_t> document_bounds, double scale);

}  // namespace steppe::ops
