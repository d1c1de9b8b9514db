// The kernel is called through its dispatch stub rather than its operator: the operator allocates outputs in
// a layout of its own, so that packed documents and shared key-value heads would cost copies. The stub's
// header names the instruction sets that LibTorch was built for by macros that only LibTorch's own build
// defines; they are part of the stub's signature, so a mismatch does not link.
#if defined(__x86_64__)
#define HAVE_AVX512_CPU_DEFINITION
#define HAVE_AVX2_CPU_DEFINITION
#endif
#include <ATen/Parallel.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <optional>

#include "steppe/kernels/attention_backend.h"

namespace steppe::kernels {
namespace {

// How ATen's kernel cuts a document of n tokens.
struct Blocks {
  int64_t queries = 0, keys = 0;
};
Blocks blocks_of(int64_t n) {
  const int64_t queries = n >= 768 ? 256 : n >= 192 ? 64 : 32;
  return {std::min(queries, n), std::min<int64_t>(512, n)};
}

// Query heads [n, hk·g, d] seen as g batches of hk heads: [g, n, hk, d]. A view.
at::Tensor by_group(const at::Tensor& x, int64_t num_key_heads) {
  const int64_t groups = x.size(1) / num_key_heads;
  return x.view({x.size(0), num_key_heads, groups, x.size(2)}).permute({2, 0, 1, 3});
}

// The log-sum-exp [hk·g, n] as [g, n, hk]. A view.
at::Tensor lse_by_group(const at::Tensor& lse, int64_t num_key_heads) {
  const int64_t groups = lse.size(0) / num_key_heads;
  return lse.unflatten(0, {num_key_heads, groups}).permute({1, 2, 0});
}

// Keys or values [n, hk, d] shared by `batches`: [batches, n, hk, d] with stride 0. A view.
at::Tensor shared(const at::Tensor& x, int64_t batches) {
  return x.unsqueeze(0).expand({batches, x.size(0), x.size(1), x.size(2)});
}

void forward_scratch_on_meta(const at::Tensor& q, int64_t n) {
  const Blocks block = blocks_of(n);
  const int64_t threads = at::get_num_threads();
  const at::Tensor accumulators =
      at::empty({threads, block.queries * block.keys + 2 * block.queries + block.queries * q.size(2)},
                q.options().dtype(at::kFloat));
  at::Tensor reduced;
  if (q.scalar_type() != at::kFloat) reduced = at::empty({threads, block.queries, block.keys}, q.options());
}

void backward_scratch_on_meta(const at::Tensor& dout_by_group, int64_t n) {
  const Blocks block = blocks_of(n);
  const int64_t threads = at::get_num_threads();
  const auto options = dout_by_group.options();
  at::Tensor contiguous_dout;
  if (!dout_by_group.is_contiguous()) contiguous_dout = at::empty(dout_by_group.sizes(), options);
  const at::Tensor accumulators =
      at::empty({threads, 2 * block.queries * block.keys}, options.dtype(at::kFloat));
  at::Tensor reduced;
  if (dout_by_group.scalar_type() != at::kFloat)
    reduced = at::empty({threads, 2 * block.queries * block.keys}, options);
  const at::Tensor row_sums = at::empty({block.queries}, options.dtype(at::kFloat));
}

// One document of the backward pass, all tensors narrowed to it.
struct DocumentBackward {
  at::Tensor dq, dk, dv;               // zeroed
  at::Tensor dout, q, k, v, out, lse;  // dq's shape: dout, q, out [n, hq, d]; k, v [n, hk, d]; lse [hq, n]
  double scale = 1;
};

// dq of `count` groups from `first` on, and their shares of dk and dv [count, n, hk, d], all added.
void add_gradients_of_groups(const DocumentBackward& x, const at::Tensor& dk_by_group,
                             const at::Tensor& dv_by_group, int64_t first, int64_t count) {
  const int64_t hk = x.k.size(1);
  const auto groups = [&](const at::Tensor& t) { return by_group(t, hk).narrow(0, first, count); };
  const at::Tensor dout = groups(x.dout);
  if (dout.is_meta()) return backward_scratch_on_meta(dout, x.q.size(0));
  at::native::flash_attention_backward_kernel(
      at::kCPU, groups(x.dq), dk_by_group, dv_by_group, dout, groups(x.q), shared(x.k, count),
      shared(x.v, count), groups(x.out), lse_by_group(x.lse, hk).narrow(0, first, count), /*dropout_p=*/0.0,
      /*is_causal=*/true, std::optional<at::Tensor>(), std::optional<double>(x.scale));
}

void backward_of_document(const DocumentBackward& x) {
  const int64_t hk = x.k.size(1), groups = x.q.size(1) / hk;
  if (groups == 1) return add_gradients_of_groups(x, x.dk.unsqueeze(0), x.dv.unsqueeze(0), 0, 1);
  // The kernel gives every query head a thread, and a gradient of its keys: as many groups at once as keep
  // the threads busy, each from zero and added in the order of groups, so that the threads do not show in the
  // bits.
  const int64_t at_once = std::min(groups, (at::get_num_threads() + hk - 1) / hk);
  const at::Tensor dk_parts = at::empty({at_once, x.k.size(0), hk, x.k.size(2)}, x.k.options());
  const at::Tensor dv_parts = at::empty(dk_parts.sizes(), x.k.options());
  for (int64_t first = 0; first < groups; first += at_once) {
    const int64_t count = std::min(at_once, groups - first);
    const at::Tensor dk = dk_parts.narrow(0, 0, count), dv = dv_parts.narrow(0, 0, count);
    if (!dk.is_meta()) {
      dk.zero_();
      dv.zero_();
    }
    add_gradients_of_groups(x, dk, dv, first, count);
    if (dk.is_meta()) continue;
    for (int64_t i = 0; i < count; ++i) {
      x.dk.add_(dk[i]);
      x.dv.add_(dv[i]);
    }
  }
}

}  // namespace

AttentionOutput attention_forward_cpu(const AttentionInput& input) {
  const at::Tensor& q = input.q_Shd;
  const int64_t hk = input.k_Shd.size(1), groups = q.size(1) / hk;
  AttentionOutput output;
  output.out_Shd = at::empty(q.sizes(), q.options());
  output.lse_hS = at::empty({q.size(1), q.size(0)}, q.options().dtype(at::kFloat));
  for (size_t i = 1; i < input.document_bounds.size(); ++i) {
    const int64_t begin = input.document_bounds[i - 1], n = input.document_bounds[i] - begin;
    if (n == 0) continue;
    if (q.is_meta()) {
      forward_scratch_on_meta(q, n);
      continue;
    }
    // The stub takes q, k, v as [batch, heads, n, d], but out and lse as [batch, n, heads, …].
    at::native::flash_attention_kernel(at::kCPU, by_group(output.out_Shd.narrow(0, begin, n), hk),
                                       lse_by_group(output.lse_hS, hk).narrow(1, begin, n),
                                       by_group(q.narrow(0, begin, n), hk).transpose(1, 2),
                                       shared(input.k_Shd.narrow(0, begin, n), groups).transpose(1, 2),
                                       shared(input.v_Shd.narrow(0, begin, n), groups).transpose(1, 2),
                                       /*dropout_p=*/0.0, /*is_causal=*/true, std::optional<at::Tensor>(),
                                       std::optional<double>(input.scale));
  }
  return output;
}

AttentionGradients attention_backward_cpu(const at::Tensor& dout_Shd, const AttentionInput& input,
                                          const AttentionOutput& output) {
  const at::Tensor &q = input.q_Shd, &k = input.k_Shd, &v = input.v_Shd;
  AttentionGradients grads;
  grads.dq_Shd = at::empty(q.sizes(), q.options());
  grads.dk_Shd = at::empty(k.sizes(), k.options());
  grads.dv_Shd = at::empty(v.sizes(), v.options());
  if (!q.is_meta())
    for (const at::Tensor* x : {&grads.dq_Shd, &grads.dk_Shd, &grads.dv_Shd}) x->zero_();
  for (size_t i = 1; i < input.document_bounds.size(); ++i) {
    const int64_t begin = input.document_bounds[i - 1], n = input.document_bounds[i] - begin;
    if (n == 0) continue;
    const auto document = [&](const at::Tensor& x) { return x.narrow(0, begin, n); };
    backward_of_document({.dq = document(grads.dq_Shd),
                          .dk = document(grads.dk_Shd),
                          .dv = document(grads.dv_Shd),
                          .dout = document(dout_Shd),
                          .q = document(q),
                          .k = document(k),
                          .v = document(v),
                          .out = document(output.out_Shd),
                          .lse = output.lse_hS.narrow(1, begin, n),
                          .scale = input.scale});
  }
  return grads;
}

}  // namespace steppe::kernels
