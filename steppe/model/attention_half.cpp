#include "steppe/kernels/clamp.h"
#include "steppe/kernels/pointwise.h"
#include "steppe/kernels/rms_norm.h"
#include "steppe/kernels/rotary.h"
#include "steppe/memory/scope.h"
#include "steppe/model/decoder_layer.h"
#include "steppe/ops/product.h"

namespace steppe::model {
namespace {

ops::UlyssesShape shape_of(const LayerCall& call) {
  const auto& c = call.context.config;
  return {c.num_attention_heads,     c.num_key_value_heads,   c.head_dim,
          c.attention_scale(),       call.row.tokens_of_rank, call.row.document_bounds,
          call.context.deterministic};
}

// The rows that QK-norm normalizes: heads, or the whole width.
at::Tensor norm_rows(const at::Tensor& x_nw, const ModelConfig& config) {
  return config.qk_norm == QkNorm::kHead ? x_nw.view({-1, config.head_dim}) : x_nw;
}

at::Tensor heads_of(const at::Tensor& x_nw, int64_t head_dim) {
  return x_nw.view({x_nw.size(0), x_nw.size(1) / head_dim, head_dim});
}

// One of q, k and v: its weights, and what its backward reads.
struct Projection {
  at::Tensor weight, norm_weight;  // the second undefined without QK-norm
  at::Tensor& raw;
  at::Tensor* inv_rms = nullptr;
};

Projection q_projection(const LayerCall& call, AttentionSaved& saved) {
  const auto& w = call.weights.dense;
  return {w.q_H, w.q_norm, saved.q_raw, &saved.q_inv_rms};
}
Projection k_projection(const LayerCall& call, AttentionSaved& saved) {
  const auto& w = call.weights.dense;
  return {w.k_H, w.k_norm, saved.k_raw, &saved.k_inv_rms};
}
Projection v_projection(const LayerCall& call, AttentionSaved& saved) {
  return {call.weights.dense.v_H, {}, saved.v_raw};
}

void normalize(const LayerCall& call, const Projection& p, const at::Tensor& out_nw) {
  const auto& config = call.context.config;
  kernels::rms_norm_forward(norm_rows(out_nw, config), *p.inv_rms, norm_rows(p.raw, config), p.norm_weight,
                            config.rms_norm_eps);
}

// x·Wᵀ, then QK-norm and clamping where they apply. What went into the first of them is kept for the
// backward.
at::Tensor project(const LayerCall& call, const at::Tensor& x_nH, const Projection& p) {
  const auto& ops = call.context.ops;
  const auto& config = call.context.config;
  auto projected = ops.empty({x_nH.size(0), p.weight.size(0)});
  ops::product(ops, FlopKind::kDense, projected, x_nH, p.weight.t());
  const bool normalized = p.norm_weight.defined(), clamped = config.clip_qkv > 0;
  if (normalized || clamped) {
    p.raw = projected;
    projected = ops.empty(p.raw.sizes());
  }
  if (normalized) {
    *p.inv_rms = ops.empty({norm_rows(p.raw, config).size(0)}, at::kFloat);
    normalize(call, p, projected);
  }
  if (clamped) kernels::clamp_forward(projected, normalized ? projected : p.raw, config.clip_qkv);
  return heads_of(projected, config.head_dim);
}

at::Tensor project_and_rotate(const LayerCall& call, const at::Tensor& x_nH, const Projection& p) {
  const auto heads = project(call, x_nH, p);
  kernels::rotary(heads, call.row.cos_nh, call.row.sin_nh, /*inverse=*/false);
  return heads;
}

// Back through clamping and QK-norm, in place on the gradient of q, k or v. Returns it as [n, heads·d].
at::Tensor unclamp_and_unnorm(const LayerCall& call, const at::Tensor& grad_nhd, const Projection& p,
                              const at::Tensor& grad_norm_weight) {
  const auto& config = call.context.config;
  const auto grad = grad_nhd.view({grad_nhd.size(0), grad_nhd.size(1) * grad_nhd.size(2)});
  const bool normalized = p.norm_weight.defined();
  if (config.clip_qkv > 0) {
    auto clamped = p.raw;
    if (normalized) {
      clamped = call.context.ops.empty(p.raw.sizes());
      normalize(call, p, clamped);  // the same bits again
    }
    kernels::clamp_backward(grad, clamped, config.clip_qkv);
  }
  if (normalized) {
    const auto rows = norm_rows(grad, config);
    kernels::rms_norm_backward({.dx = rows,
                                .grad_weight = grad_norm_weight,
                                .dy = rows,
                                .x = norm_rows(p.raw, config),
                                .weight = p.norm_weight,
                                .inv_rms = *p.inv_rms});
  }
  return grad;
}

at::Tensor unrotate_and_unnorm(const LayerCall& call, const at::Tensor& grad_nhd, const Projection& p,
                               const at::Tensor& grad_norm_weight) {
  kernels::rotary(grad_nhd, call.row.cos_nh, call.row.sin_nh, /*inverse=*/true);
  return unclamp_and_unnorm(call, grad_nhd, p, grad_norm_weight);
}

}  // namespace

at::Tensor attention_forward(const LayerCall& call, const at::Tensor& h_nH, AttentionSaved& saved) {
  const memory::Scope scope(memory::Category::kAttention);
  const auto& ops = call.context.ops;
  const auto& w = call.weights.dense;
  const int64_t n = h_nH.size(0);
  saved.x_nH = ops.empty(h_nH.sizes());
  saved.inv_rms_n = ops.empty({n}, at::kFloat);
  kernels::rms_norm_forward(saved.x_nH, saved.inv_rms_n, h_nH, w.input_norm_H,
                            call.context.config.rms_norm_eps);
  {
    const auto q = project_and_rotate(call, saved.x_nH, q_projection(call, saved));
    const auto k = project_and_rotate(call, saved.x_nH, k_projection(call, saved));
    const auto v = project(call, saved.x_nH, v_projection(call, saved));
    saved.out_nh = ops::ulysses_attention_forward(ops, *call.context.groups.sequence, shape_of(call), q, k, v,
                                                  saved.ulysses);
  }
  const memory::Scope residual(memory::Category::kResidual);
  const auto h_mid = ops.empty(h_nH.sizes());
  kernels::copy_cast(h_mid, h_nH);
  ops::product_add(ops, FlopKind::kDense, h_mid, saved.out_nh, w.o_H.t());
  return h_mid;
}

void attention_backward(const LayerCall& call, const LayerGradients& grads, const at::Tensor& h_nH,
                        const at::Tensor& dh_nH, AttentionSaved& saved) {
  const memory::Scope scope(memory::Category::kAttention);
  const auto& ops = call.context.ops;
  const auto& w = call.weights.dense;
  const auto& g = grads.dense;
  const auto kind = FlopKind::kDense;
  auto dout = ops.empty(saved.out_nh.sizes());
  ops::product(ops, kind, dout, dh_nH, w.o_H);
  ops::product_accumulate(ops, kind, g.o_H, dh_nH.t(), saved.out_nh);
  if (call.context.groups.sequence->size() > 1) saved.out_nh.reset();
  auto d = ops::ulysses_attention_backward(ops, *call.context.groups.sequence, shape_of(call), dout,
                                           saved.ulysses);
  dout.reset(), saved.out_nh.reset();

  const auto dx = ops.empty(h_nH.sizes());
  const auto dq = unrotate_and_unnorm(call, d.dq_nhd, q_projection(call, saved), g.q_norm);
  ops::product(ops, kind, dx, dq, w.q_H);
  ops::product_accumulate(ops, kind, g.q_H, dq.t(), saved.x_nH);
  const auto dk = unrotate_and_unnorm(call, d.dk_nhd, k_projection(call, saved), g.k_norm);
  ops::product_add(ops, kind, dx, dk, w.k_H);
  ops::product_accumulate(ops, kind, g.k_H, dk.t(), saved.x_nH);
  const auto dv = unclamp_and_unnorm(call, d.dv_nhd, v_projection(call, saved), {});
  ops::product_add(ops, kind, dx, dv, w.v_H);
  ops::product_accumulate(ops, kind, g.v_H, dv.t(), saved.x_nH);
  kernels::rms_norm_backward({.dx = dh_nH,
                              .grad_weight = g.input_norm_H,
                              .dy = dx,
                              .x = h_nH,
                              .weight = w.input_norm_H,
                              .inv_rms = saved.inv_rms_n,
                              .add_to_dx = true});
  saved = {};
}

}  // namespace steppe::model
