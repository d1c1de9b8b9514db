#include "steppe/model/decoder_layer_reference.h"

#include <ATen/ATen.h>

#include <cmath>

namespace steppe::model {
namespace {

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  return x * (x * x).mean(-1, /*keepdim=*/true).add(eps).rsqrt() * weight;
}

// Half-split rotary of [n, heads, d].
at::Tensor rotated(const at::Tensor& x, const at::Tensor& cos_nh, const at::Tensor& sin_nh) {
  const auto halves = x.chunk(2, -1);
  const auto cos = cos_nh.unsqueeze(1), sin = sin_nh.unsqueeze(1);
  return at::cat({halves[0] * cos - halves[1] * sin, halves[1] * cos + halves[0] * sin}, -1);
}

at::Tensor project(const ReferenceInput& in, const at::Tensor& x_nH, const at::Tensor& weight,
                   const at::Tensor& norm_weight, bool rotate) {
  const auto& c = in.config;
  auto y = x_nH.matmul(weight.t());
  if (norm_weight.defined() && c.qk_norm == QkNorm::kFull) y = rms_norm(y, norm_weight, c.rms_norm_eps);
  y = y.view({y.size(0), weight.size(0) / c.head_dim, c.head_dim});
  if (norm_weight.defined() && c.qk_norm == QkNorm::kHead) y = rms_norm(y, norm_weight, c.rms_norm_eps);
  if (c.clip_qkv > 0) y = y.clamp(-c.clip_qkv, c.clip_qkv);
  return rotate ? rotated(y, in.cos_nh, in.sin_nh) : y;
}

// True where query i must not see key j.
at::Tensor hidden_pairs(std::span<const int64_t> bounds) {
  const int64_t n = bounds.back();
  auto hidden = at::ones({n, n}, at::kBool);
  for (size_t i = 1; i < bounds.size(); ++i) {
    const int64_t begin = bounds[i - 1], size = bounds[i] - begin;
    hidden.narrow(0, begin, size).narrow(1, begin, size).copy_(at::ones({size, size}, at::kBool).triu(1));
  }
  return hidden;
}

at::Tensor attention(const ReferenceInput& in) {
  const auto& w = in.weights.dense;
  const auto& c = in.config;
  const auto x = rms_norm(in.h_nH, w.input_norm_H, c.rms_norm_eps);
  const int64_t sharing = c.num_attention_heads / c.num_key_value_heads;
  const auto q = project(in, x, w.q_H, w.q_norm, true).transpose(0, 1);
  const auto k = project(in, x, w.k_H, w.k_norm, true).repeat_interleave(sharing, 1).transpose(0, 1);
  const auto v = project(in, x, w.v_H, {}, false).repeat_interleave(sharing, 1).transpose(0, 1);
  const auto scores = q.matmul(k.transpose(1, 2)) / std::sqrt(static_cast<double>(c.head_dim));
  const auto p = scores.masked_fill(hidden_pairs(in.document_bounds), -INFINITY).softmax(-1);
  return p.matmul(v).transpose(0, 1).flatten(1).matmul(w.o_H.t());
}

at::Tensor swiglu(const at::Tensor& x, const at::Tensor& gate_up, const at::Tensor& down) {
  const auto halves = x.matmul(gate_up.t()).chunk(2, -1);
  return (at::silu(halves[0]) * halves[1]).matmul(down.t());
}

}  // namespace

ReferenceOutput decoder_layer_reference(const ReferenceInput& in) {
  const auto& c = in.config;
  const auto& w = in.weights;
  ReferenceOutput result;
  const auto h = in.h_nH + attention(in);
  const auto x = rms_norm(h, w.dense.post_norm_H, c.rms_norm_eps);
  if (c.is_dense_layer(in.layer)) {
    result.out_nH = h + swiglu(x, w.dense.feed_forward.gate_up_2IH, w.dense.feed_forward.down_HI);
    return result;
  }
  const auto logits = x.matmul(w.dense.router_EH.t());
  const auto scores = logits.softmax(-1);
  result.router_loss = in.router_losses.z_coeff * logits.logsumexp(-1).square().sum();
  if (in.router_losses.dscores_E.defined()) {
    result.router_loss = result.router_loss + (scores * in.router_losses.dscores_E).sum();
  }
  result.ids_nk = in.ids_nk;
  if (!result.ids_nk.defined()) {
    const auto ranked = in.bias_E.defined() ? scores + in.bias_E : scores;
    result.ids_nk = std::get<1>(ranked.detach().topk(c.num_experts_per_tok, -1));
  }
  auto weights = scores.gather(1, result.ids_nk);
  if (c.norm_topk_prob) weights = weights / weights.sum(-1, /*keepdim=*/true);
  result.weights_nk = weights.detach();
  auto out = h;
  for (int64_t e = 0; e < c.num_experts; ++e) {
    const auto weight = (weights * result.ids_nk.eq(e)).sum(-1, /*keepdim=*/true);
    out = out + weight * swiglu(x, w.experts.gate_up_E2IH[e], w.experts.down_EHI[e]);
  }
  if (w.dense.shared_expert.down_HI.defined()) {
    out = out + swiglu(x, w.dense.shared_expert.gate_up_2IH, w.dense.shared_expert.down_HI);
  }
  result.out_nH = out;
  return result;
}

}  // namespace steppe::model
