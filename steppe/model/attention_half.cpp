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
  return {c.num_attention_heads, c.num_key_value_heads,   c.head_dim,
          c.attention_scale(),   call.row.tokens_of_rank, call.row.document_bounds};
}

// The rows that QK-norm normalizes: heads, or the whole width.
at::Tensor norm_rows(const at::Tensor& x_nw, const ModelConfig& config) {
  return config.qk_norm == QkNorm::kHead ? x_nw.view({-1, config.head_dim}) : x_nw;
}

at::Tensor heads_of(const at::Tensor& x_nw, int64_t head_dim) {
  return x_nw.view({x_nw.size(0), x_nw.size(1) / head_dim, head_dim});
}

// x·Wᵀ, then QK-norm and rotary where they apply. Raw values and inverse root mean squares are kept for the
// backward.
at::Tensor project_and_rotate(const LayerCall& call, const at::Tensor& x_nH, const at::Tensor& weight,
                              const at::Tensor& norm_weight, at::Tensor& raw, at::Tensor& inv_rms) {
  const auto& ops = call.context.ops;
  const auto& config = call.context.config;
  auto projected = ops.empty({x_nH.size(0), weight.size(0)});
  ops::product(ops, FlopKind::kDense, projected, x_nH, weight.t());
  if (norm_weight.defined()) {
    raw = projected;
    projected = ops.empty(raw.sizes());
    const auto rows = norm_rows(raw, config);
    inv_rms = ops.empty({rows.size(0)}, at::kFloat);
    kernels::rms_norm_forward(norm_rows(projected, config), inv_rms, rows, norm_weight, config.rms_norm_eps);
  }
  const auto heads = heads_of(projected, config.head_dim);
  kernels::rotary(heads, call.row.cos_nh, call.row.sin_nh, /*inverse=*/false);
  return heads;
}

// Back through rotary and QK-norm, in place on the gradient of q or k. Returns it as [n, heads·d].
at::Tensor unrotate_and_unnorm(const LayerCall& call, const at::Tensor& grad_nhd,
                               const at::Tensor& norm_weight, const at::Tensor& grad_norm_weight,
                               const at::Tensor& raw, const at::Tensor& inv_rms) {
  kernels::rotary(grad_nhd, call.row.cos_nh, call.row.sin_nh, /*inverse=*/true);
  const auto grad = grad_nhd.view({grad_nhd.size(0), grad_nhd.size(1) * grad_nhd.size(2)});
  if (norm_weight.defined()) {
    const auto rows = norm_rows(grad, call.context.config);
    kernels::rms_norm_backward({.dx = rows,
                                .grad_weight = grad_norm_weight,
                                .dy = rows,
                                .x = norm_rows(raw, call.context.config),
                                .weight = norm_weight,
                                .inv_rms = inv_rms});
  }
  return grad;
}

}  // namespace

at::Tensor attention_forward(const LayerCall& call, const at::Tensor& h_nH, AttentionSaved& saved) {
  const memory::Scope scope(memory::Category::kAttention);
  const auto& ops = call.context.ops;
  const auto& w = call.weights.dense;
  const int64_t n = h_nH.size(0), d = call.context.config.head_dim;
  saved.x_nH = ops.empty(h_nH.sizes());
  saved.inv_rms_n = ops.empty({n}, at::kFloat);
  kernels::rms_norm_forward(saved.x_nH, saved.inv_rms_n, h_nH, w.input_norm_H,
                            call.context.config.rms_norm_eps);
  {
    const auto q = project_and_rotate(call, saved.x_nH, w.q_H, w.q_norm, saved.q_raw, saved.q_inv_rms);
    const auto k = project_and_rotate(call, saved.x_nH, w.k_H, w.k_norm, saved.k_raw, saved.k_inv_rms);
    const auto v = ops.empty({n, w.v_H.size(0)});
    ops::product(ops, FlopKind::kDense, v, saved.x_nH, w.v_H.t());
    saved.out_nh = ops::ulysses_attention_forward(ops, *call.context.groups.sequence, shape_of(call), q, k,
                                                  heads_of(v, d), saved.ulysses);
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
  const auto dq = unrotate_and_unnorm(call, d.dq_nhd, w.q_norm, g.q_norm, saved.q_raw, saved.q_inv_rms);
  ops::product(ops, kind, dx, dq, w.q_H);
  ops::product_accumulate(ops, kind, g.q_H, dq.t(), saved.x_nH);
  const auto dk = unrotate_and_unnorm(call, d.dk_nhd, w.k_norm, g.k_norm, saved.k_raw, saved.k_inv_rms);
  ops::product_add(ops, kind, dx, dk, w.k_H);
  ops::product_accumulate(ops, kind, g.k_H, dk.t(), saved.x_nH);
  const auto dv = d.dv_nhd.view({h_nH.size(0), w.v_H.size(0)});
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
