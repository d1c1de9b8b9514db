// Exact causal attention, memory-linear in length, confined to documents. Unlike the other kernels these allocate:
// what ATen's flash kernels allocate (outputs and thread scratch), the same on `meta`.
//
// q [S, hq, d], k and v [S, hk, d] (strides free but for the last dim), hq a multiple of hk: query head i uses
// key-value head i / (hq/hk). document_bounds: host, cumulative, 0 … S; a query sees keys of its own document at
// or before it. Scale 1/√d unless given.
// CPU: ATen's flash kernel per document (fp32, bf16). CUDA: ATen's _flash_attention_* with cumulative lengths
// (bf16), the memory-efficient kernel for fp32.
// Source: FlashAttention, Dao et al. 2022.
#pragma once

#include <cstdint>
#include <span>

#include <ATen/core/Tensor.h>

namespace steppe::kernels {

struct AttentionOutput {
  at::Tensor out_Shd;  // [S, hq, d], contiguous, q's dtype
  at::Tensor lse_hS;   // [hq, S] fp32 log-sum-exp of the scaled scores
};

struct AttentionGradients {
  at::Tensor dq_Shd, dk_Shd, dv_Shd;  // contiguous, shapes of q, k, v
};

AttentionOutput attention_forward(const at::Tensor& q_Shd, const at::Tensor& k_Shd, const at::Tensor& v_Shd,
                                  std::span<const int64_t> document_bounds, double scale);

AttentionGradients attention_backward(const at::Tensor& dout_Shd, const at::Tensor& q_Shd, const at::Tensor& k_Shd,
                                      const at::Tensor& v_Shd, const AttentionOutput& output,
                                      std::span<const int64_t> document_bounds, double scale);

}  // namespace steppe::kernels
