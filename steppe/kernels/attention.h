// Exact causal attention, memory-linear in length, confined to documents. Unlike the other kernels these
// allocate.
//
// q [S, hq, d], k and v [S, hk, d] (strides free but for the last dim), hq a multiple of hk: query head i
// uses key-value head i / (hq/hk). document_bounds: host, cumulative, 0 … S (documents may be empty; S = 0
// has bounds {0} or {0, 0}); a query sees keys of its own document at or before it. Scores are multiplied by
// `scale` > 0, usually 1/√d. Products and softmax accumulate in fp32.
//
// CPU (fp32, bf16): ATen's flash kernel per document, called below its operator, so that it reads q, k, v
// where they lie (key-value heads are shared, not repeated) and writes into out and lse in place: one
// document or many, nothing is copied. CUDA: ATen's _flash_attention_* with cumulative lengths (bf16), the
// memory-efficient kernel for fp32 (which repeats key-value heads to hq).
//
// Bytes, on a CPU and on `meta` alike, in this order. With n the document's length, nt threads, g = hq/hk,
// qs = min(n, n ≥ 768 ? 256 : n ≥ 192 ? 64 : 32), ks = min(n, 512), b the size of an element:
//   forward    out, lse; per document fp32 [nt, qs·ks + 2qs + qs·d], and bf16 [nt, qs, ks] for bf16
//   backward   dq, dk, dv; per document, if g > 1, dk and dv of p = min(g, ⌈nt/hk⌉) query groups
//              (2·p·n·hk·d·b); per p groups a contiguous dout (p·n·hk·d·b; none if g = 1 and dout is
//              contiguous), fp32 [nt, 2·qs·ks], bf16 [nt, 2·qs·ks] for bf16, fp32 [qs]
// Not counted: the backward's other workers each take their own fp32 [qs] (at most 1 KiB), on their own
// thread; for bf16, where oneDNN has bf16 products, these take scratch (about 0.2 MiB per thread) while they
// run. The backward runs p·hk heads side by side. Results do not depend on the number of threads on a CPU. On
// CUDA both of ATen's kernels add dq by atomics; with `deterministic`, dq is computed again by query blocks
// (attention_dq_backend.h, bf16: three products more, no more bytes), or keys are not split (fp32). Source:
// FlashAttention, Dao et al. 2022.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

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

// dout [S, hq, d]: strides free but for the last dim. `deterministic`: the same bits on every run, on CUDA
// too.
AttentionGradients attention_backward(const at::Tensor& dout_Shd, const at::Tensor& q_Shd,
                                      const at::Tensor& k_Shd, const at::Tensor& v_Shd,
                                      const AttentionOutput& output, std::span<const int64_t> document_bounds,
                                      double scale, bool deterministic = true);

}  // namespace steppe::kernels
