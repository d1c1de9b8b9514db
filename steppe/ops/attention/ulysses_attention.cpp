#include "steppe/ops/attention/ulysses_attention.h"

#include <numeric>

#include "steppe/base/error.h"
#include "steppe/comm/collectives.h"
#include "steppe/kernels/pointwise.h"
#include "steppe/memory/scope.h"

namespace steppe::ops {
namespace {

// How heads are dealt to the ranks of a sequence group.
struct HeadDeal {
  int64_t degree, heads, kv_heads, head_dim;
  int64_t heads_each() const { return heads / degree; }
  int64_t kv_heads_each() const { return kv_heads >= degree ? kv_heads / degree : 1; }
  int64_t first_kv_head(int64_t rank) const {
    return kv_heads >= degree ? rank * kv_heads_each() : rank / (degree / kv_heads);
  }
  int64_t row_width() const { return (heads_each() + 2 * kv_heads_each()) * head_dim; }
};

HeadDeal deal_of(const UlyssesShape& shape, int degree) {
  return {degree, shape.num_heads, shape.num_kv_heads, shape.head_dim};
}

int64_t total_tokens(const UlyssesShape& shape) {
  return std::accumulate(shape.tokens_of_rank.begin(), shape.tokens_of_rank.end(), int64_t{0});
}

// [n, h, d] as rows of h·d values; the head and last dims are contiguous.
at::Tensor rows_of_heads(const at::Tensor& x_nhd, int64_t first, int64_t count) {
  const auto part = x_nhd.narrow(1, first, count);
  return part.as_strided({part.size(0), count * part.size(2)}, {part.stride(0), 1});
}

// For each peer the rows of its heads, [D·n, width] in peer order.
at::Tensor pack_for_peers(const OpContext& context, const HeadDeal& deal, const at::Tensor& q_nhd,
                          const at::Tensor& k_nhd, const at::Tensor& v_nhd) {
  const int64_t n = q_nhd.size(0), d = deal.head_dim;
  const int64_t q_width = deal.heads_each() * d, kv_width = deal.kv_heads_each() * d;
  const auto packed = context.empty({deal.degree * n, deal.row_width()});
  for (int64_t p = 0; p < deal.degree; ++p) {
    const auto rows = packed.narrow(0, p * n, n);
    const int64_t kv = deal.first_kv_head(p);
    kernels::copy_cast(rows.narrow(1, 0, q_width),
                       rows_of_heads(q_nhd, p * deal.heads_each(), deal.heads_each()));
    kernels::copy_cast(rows.narrow(1, q_width, kv_width), rows_of_heads(k_nhd, kv, deal.kv_heads_each()));
    kernels::copy_cast(rows.narrow(1, q_width + kv_width, kv_width),
                       rows_of_heads(v_nhd, kv, deal.kv_heads_each()));
  }
  return packed;
}

std::vector<int64_t> repeated(int64_t value, int64_t times) {
  return std::vector<int64_t>(times, value);
}

int64_t attention_pairs(std::span<const int64_t> bounds) {
  int64_t pairs = 0;
  for (size_t i = 1; i < bounds.size(); ++i) {
    const int64_t s = bounds[i] - bounds[i - 1];
    pairs += s * (s + 1) / 2;
  }
  return pairs;
}

// The output of the saved q, k, v: computed, unless it is there.
void attend(const OpContext& context, const UlyssesShape& shape, UlyssesSaved& saved) {
  if (saved.output.out_Shd.defined()) {
    STEPPE_ASSERT(saved.output.out_Shd.sizes() == saved.q_Shd.sizes(),
                  "[ulysses_attention] the kept output must have the shape of q");
    return;
  }
  context.counters->flops.add(FlopKind::kAttention, 4 * attention_pairs(shape.document_bounds) *
                                                        saved.q_Shd.size(1) * saved.q_Shd.size(2));
  const memory::Scope scope(saved.output_outlives_layer ? memory::Category::kSaved
                                                        : memory::Category::kAttention);
  saved.output =
      kernels::attention_forward(saved.q_Shd, saved.k_Shd, saved.v_Shd, shape.document_bounds, shape.scale);
}

// Heads of all tokens → tokens of this rank with all heads: [S, heads·d] to [n, D·heads·d].
at::Tensor heads_to_tokens(const OpContext& context, comm::Communicator& group, const UlyssesShape& shape,
                           const at::Tensor& rows_S, int64_t width) {
  const int64_t degree = group.size(), n = shape.tokens_of_rank[group.rank()];
  const auto received = context.empty({degree * n, width});
  comm::all_to_all_rows(group, received, rows_S, repeated(n, degree), shape.tokens_of_rank).wait();
  return received;
}

}  // namespace

at::Tensor ulysses_attention_forward(const OpContext& context, comm::Communicator& group,
                                     const UlyssesShape& shape, const at::Tensor& q_nhd,
                                     const at::Tensor& k_nhd, const at::Tensor& v_nhd, UlyssesSaved& saved) {
  const memory::Scope scope(memory::Category::kAttention);
  const int64_t degree = group.size(), total = total_tokens(shape);
  STEPPE_ASSERT(static_cast<int64_t>(shape.tokens_of_rank.size()) == degree,
                "[ulysses_attention] tokens_of_rank has {} entries in a group of {}",
                shape.tokens_of_rank.size(), degree);
  const auto deal = deal_of(shape, static_cast<int>(degree));
  const int64_t d = shape.head_dim;
  if (degree == 1) {
    saved.q_Shd = q_nhd, saved.k_Shd = k_nhd, saved.v_Shd = v_nhd;
    attend(context, shape, saved);
    return saved.output.out_Shd.view({q_nhd.size(0), shape.num_heads * d});
  }
  const int64_t n = q_nhd.size(0);
  const auto received = context.empty({total, deal.row_width()});
  {
    const auto packed = pack_for_peers(context, deal, q_nhd, k_nhd, v_nhd);
    comm::all_to_all_rows(group, received, packed, shape.tokens_of_rank, repeated(n, degree)).wait();
  }
  const auto heads = received.view({total, deal.heads_each() + 2 * deal.kv_heads_each(), d});
  saved.q_Shd = heads.narrow(1, 0, deal.heads_each());
  saved.k_Shd = heads.narrow(1, deal.heads_each(), deal.kv_heads_each());
  saved.v_Shd = heads.narrow(1, deal.heads_each() + deal.kv_heads_each(), deal.kv_heads_each());
  attend(context, shape, saved);

  const int64_t width = deal.heads_each() * d;
  const auto parts = heads_to_tokens(context, group, shape, saved.output.out_Shd.view({total, width}), width);
  const auto out = context.empty({n, shape.num_heads * d});
  for (int64_t p = 0; p < degree; ++p) {
    kernels::copy_cast(out.narrow(1, p * width, width), parts.narrow(0, p * n, n));
  }
  return out;
}

UlyssesGradients ulysses_attention_backward(const OpContext& context, comm::Communicator& group,
                                            const UlyssesShape& shape, const at::Tensor& dout_nh,
                                            UlyssesSaved& saved) {
  const memory::Scope scope(memory::Category::kAttention);
  const int64_t degree = group.size(), total = total_tokens(shape), d = shape.head_dim;
  const auto deal = deal_of(shape, static_cast<int>(degree));
  // Five products of the causal half: scores again, dv, dp, dq, dk.
  context.counters->flops.add(FlopKind::kAttention,
                              10 * attention_pairs(shape.document_bounds) * deal.heads_each() * d);
  const int64_t n = dout_nh.size(0), width = deal.heads_each() * d;
  if (degree == 1) {
    const auto grads = kernels::attention_backward(dout_nh.view({n, shape.num_heads, d}), saved.q_Shd,
                                                   saved.k_Shd, saved.v_Shd, saved.output,
                                                   shape.document_bounds, shape.scale, shape.deterministic);
    saved = {};
    return {grads.dq_Shd, grads.dk_Shd, grads.dv_Shd};
  }
  auto dout_S = context.empty({total, width});
  {
    const auto packed = context.empty({degree * n, width});
    for (int64_t p = 0; p < degree; ++p) {
      kernels::copy_cast(packed.narrow(0, p * n, n), dout_nh.narrow(1, p * width, width));
    }
    comm::all_to_all_rows(group, dout_S, packed, shape.tokens_of_rank, repeated(n, degree)).wait();
  }
  auto grads = kernels::attention_backward(dout_S.view({total, deal.heads_each(), d}), saved.q_Shd,
                                           saved.k_Shd, saved.v_Shd, saved.output, shape.document_bounds,
                                           shape.scale, shape.deterministic);
  saved = {};
  dout_S.reset();
  const int64_t kv_width = deal.kv_heads_each() * d;
  auto packed = context.empty({total, deal.row_width()});
  kernels::copy_cast(packed.narrow(1, 0, width), grads.dq_Shd.view({total, width}));
  kernels::copy_cast(packed.narrow(1, width, kv_width), grads.dk_Shd.view({total, kv_width}));
  kernels::copy_cast(packed.narrow(1, width + kv_width, kv_width), grads.dv_Shd.view({total, kv_width}));
  grads = {};
  const auto parts = heads_to_tokens(context, group, shape, packed, deal.row_width());
  packed.reset();

  const auto dq = context.empty({n, shape.num_heads, d});
  const auto dk = context.empty({n, shape.num_kv_heads, d});
  const auto dv = context.empty({n, shape.num_kv_heads, d});
  int64_t last_kv = -1;
  for (int64_t p = 0; p < degree; ++p) {
    const auto rows = parts.narrow(0, p * n, n);
    const int64_t kv = deal.first_kv_head(p);
    kernels::copy_cast(rows_of_heads(dq, p * deal.heads_each(), deal.heads_each()), rows.narrow(1, 0, width));
    const auto dk_rows = rows_of_heads(dk, kv, deal.kv_heads_each());
    const auto dv_rows = rows_of_heads(dv, kv, deal.kv_heads_each());
    const auto merge = kv == last_kv ? kernels::add_to : kernels::copy_cast;
    merge(dk_rows, rows.narrow(1, width, kv_width));
    merge(dv_rows, rows.narrow(1, width + kv_width, kv_width));
    last_kv = kv;
  }
  return {dq, dk, dv};
}

}  // namespace steppe::ops
