#include <ATen/ops/_efficient_attention_backward.h>
#include <ATen/ops/_efficient_attention_forward.h>
#include <ATen/ops/_flash_attention_backward.h>
#include <ATen/ops/_flash_attention_forward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <tuple>
#include <vector>

#include "steppe/kernels/attention_backend.h"
#include "steppe/kernels/attention_dq_backend.h"
#include "steppe/kernels/backend.h"
#include "steppe/kernels/host_values_backend.h"

namespace steppe::kernels {
namespace {

// The documents that have tokens: their cumulative lengths on the host and, as int32, on the device.
struct Documents {
  std::vector<int64_t> bounds = {0};
  int64_t longest = 0;
  at::Tensor bounds_on_device;
};

Documents documents_of(const AttentionInput& input) {
  Documents documents;
  for (const int64_t bound : input.document_bounds) {
    if (bound == documents.bounds.back()) continue;
    documents.longest = std::max(documents.longest, bound - documents.bounds.back());
    documents.bounds.push_back(bound);
  }
  const std::vector<int32_t> bounds(documents.bounds.begin(), documents.bounds.end());
  documents.bounds_on_device =
      at::empty({static_cast<int64_t>(bounds.size())}, input.q_Shd.options().dtype(at::kInt));
  cuda::put_host_values(documents.bounds_on_device.mutable_data_ptr<int32_t>(), bounds, "attention",
                        current_cuda_stream(input.q_Shd));
  return documents;
}

// What the flash kernel is told of the longest. Where it is told 1 it trades queries for the heads that share
// a key head, and leaves the log-sum-exps of several documents in another order.
int64_t flash_longest(const Documents& documents) {
  return std::max<int64_t>(2, documents.longest);
}

// The memory-efficient kernel wants as many key-value heads as query heads, and a batch of one.
at::Tensor repeated(const at::Tensor& x, int64_t num_heads) {
  return x.repeat_interleave(num_heads / x.size(1), 1).unsqueeze(0);
}
// Its gradient: the sum over the query heads that share a key-value head.
at::Tensor summed(const at::Tensor& dx, int64_t num_key_heads) {
  return dx.view({dx.size(1), num_key_heads, dx.size(2) / num_key_heads, dx.size(3)}).sum(2);
}
constexpr int64_t kCausal = 1;  // its custom_mask_type for a causal mask from the top left
constexpr int64_t kLseMultiple =
    32;  // its log-sum-exp is [documents, heads, longest document rounded up to this]

AttentionOutput efficient_forward(const AttentionInput& input, const Documents& documents) {
  const at::Tensor& q = input.q_Shd;
  const at::Tensor& bounds = documents.bounds_on_device;
  const auto result = at::_efficient_attention_forward(
      q.unsqueeze(0), repeated(input.k_Shd, q.size(1)), repeated(input.v_Shd, q.size(1)), std::nullopt,
      bounds, bounds, documents.longest, documents.longest, /*dropout_p=*/0.0, kCausal,
      /*compute_log_sumexp=*/true, input.scale);
  const at::Tensor &out = std::get<0>(result), &padded = std::get<1>(result);
  AttentionOutput output{out.squeeze(0).contiguous(), at::empty({q.size(1), q.size(0)}, padded.options())};
  for (size_t i = 1; i < documents.bounds.size(); ++i) {
    const int64_t begin = documents.bounds[i - 1], n = documents.bounds[i] - begin;
    output.lse_hS.narrow(1, begin, n).copy_(padded.select(0, static_cast<int64_t>(i) - 1).narrow(1, 0, n));
  }
  return output;
}

AttentionGradients efficient_backward(const at::Tensor& dout, const AttentionInput& input,
                                      const AttentionOutput& output, const Documents& documents) {
  const at::Tensor& q = input.q_Shd;
  const int64_t heads = q.size(1), num_documents = static_cast<int64_t>(documents.bounds.size()) - 1;
  const int64_t padded_length = (documents.longest + kLseMultiple - 1) / kLseMultiple * kLseMultiple;
  // +∞ in the padding: e^{score − ∞} is 0.
  const at::Tensor padded =
      at::full({num_documents, heads, padded_length}, INFINITY, output.lse_hS.options());
  for (int64_t i = 0; i < num_documents; ++i) {
    const int64_t begin = documents.bounds[i], n = documents.bounds[i + 1] - begin;
    padded.select(0, i).narrow(1, 0, n).copy_(output.lse_hS.narrow(1, begin, n));
  }
  const at::Tensor& bounds = documents.bounds_on_device;
  const at::Tensor no_dropout = at::zeros({1}, q.options().dtype(at::kLong));
  const auto grads = at::_efficient_attention_backward(
      dout.unsqueeze(0), q.unsqueeze(0), repeated(input.k_Shd, heads), repeated(input.v_Shd, heads),
      std::nullopt, output.out_Shd.unsqueeze(0), bounds, bounds, documents.longest, documents.longest, padded,
      /*dropout_p=*/0.0, no_dropout, no_dropout, kCausal, /*bias_requires_grad=*/false, input.scale,
      /*num_splits_key=*/input.deterministic ? std::optional<int64_t>(1) : std::nullopt);
  return {std::get<0>(grads).squeeze(0).contiguous(), summed(std::get<1>(grads), input.k_Shd.size(1)),
          summed(std::get<2>(grads), input.v_Shd.size(1))};
}

HeadRows rows_of(const at::Tensor& x) {
  return {x.const_data_ptr(), x.stride(0), x.stride(1)};
}

// Over the flash kernel's dq, which has been added in no particular order.
void write_dq_in_order(const at::Tensor& dq, const at::Tensor& dout, const AttentionInput& input,
                       const AttentionOutput& output, const Documents& documents) {
  const at::Tensor& q = input.q_Shd;
  cuda::attention_dq({.dq = dq.mutable_data_ptr(),
                      .q = rows_of(q),
                      .k = rows_of(input.k_Shd),
                      .v = rows_of(input.v_Shd),
                      .out = rows_of(output.out_Shd),
                      .dout = rows_of(dout),
                      .lse = output.lse_hS.const_data_ptr<float>(),
                      .bounds = documents.bounds_on_device.const_data_ptr<int32_t>(),
                      .num_documents = static_cast<int>(documents.bounds.size()) - 1,
                      .tokens = static_cast<int>(q.size(0)),
                      .heads = static_cast<int>(q.size(1)),
                      .key_heads = static_cast<int>(input.k_Shd.size(1)),
                      .head_dim = static_cast<int>(q.size(2)),
                      .scale = static_cast<float>(input.scale)},
                     current_cuda_stream(q));
}

}  // namespace

AttentionOutput attention_forward_cuda(const AttentionInput& input) {
  const at::Tensor& q = input.q_Shd;
  if (q.size(0) == 0)
    return {at::empty(q.sizes(), q.options()), at::empty({q.size(1), 0}, q.options().dtype(at::kFloat))};
  const Documents documents = documents_of(input);
  if (q.scalar_type() == at::kFloat) return efficient_forward(input, documents);
  const at::Tensor& bounds = documents.bounds_on_device;
  const auto result =
      at::_flash_attention_forward(q, input.k_Shd, input.v_Shd, bounds, bounds, flash_longest(documents),
                                   flash_longest(documents), /*dropout_p=*/0.0, /*is_causal=*/true,
                                   /*return_debug_mask=*/false, input.scale);
  return {std::get<0>(result).contiguous(), std::get<1>(result).contiguous()};
}

AttentionGradients attention_backward_cuda(const at::Tensor& dout_Shd, const AttentionInput& input,
                                           const AttentionOutput& output) {
  const at::Tensor &q = input.q_Shd, &k = input.k_Shd, &v = input.v_Shd;
  if (q.size(0) == 0)
    return {at::empty(q.sizes(), q.options()), at::empty(k.sizes(), k.options()),
            at::empty(v.sizes(), v.options())};
  const Documents documents = documents_of(input);
  if (q.scalar_type() == at::kFloat) return efficient_backward(dout_Shd, input, output, documents);
  const at::Tensor& bounds = documents.bounds_on_device;
  // What dropout would have drawn from: not read without it.
  const at::Tensor no_rng_state = at::zeros({2}, q.options().dtype(at::kLong)).view(at::kUInt64);
  const auto grads = at::_flash_attention_backward(dout_Shd, q, k, v, output.out_Shd, output.lse_hS, bounds,
                                                   bounds, flash_longest(documents), flash_longest(documents),
                                                   /*dropout_p=*/0.0, /*is_causal=*/true, no_rng_state,
                                                   no_rng_state, input.scale);
  AttentionGradients result{std::get<0>(grads).contiguous(), std::get<1>(grads).contiguous(),
                            std::get<2>(grads).contiguous()};
  if (input.deterministic) write_dq_in_order(result.dq_Shd, dout_Shd, input, output, documents);
  return result;
}

}  // namespace steppe::kernels
