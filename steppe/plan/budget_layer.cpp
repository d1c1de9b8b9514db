#include <algorithm>

#include "steppe/ops/feed_forward/feed_forward.h"
#include "steppe/plan/budget_sizes.h"

namespace steppe::plan {
namespace {

using memory::Category;

struct AttentionScratch {
  int64_t forward = 0, backward = 0;
};

// kernels/attention_as_cuda.cpp.
AttentionScratch scratch_as_cuda(const Sizes& s) {
  const int64_t multiple = s.d <= 128 ? 32 : 64, width = (s.d + multiple - 1) / multiple * multiple;
  const int64_t rows = s.row + 128 * s.num_documents;
  const int64_t of_heads = s.heads_each == s.kv_heads_each ? 0 : 2 * s.row * s.heads_each * s.d * s.b;
  return {0, of_heads + 4 * rows * s.heads_each * (width + 1)};
}

// kernels/attention.h states them.
AttentionScratch scratch_of(const Sizes& s) {
  if (s.as_cuda && !s.fp32()) return scratch_as_cuda(s);
  const int64_t length = s.longest_document;
  const int64_t qs = std::min<int64_t>(length, length >= 768 ? 256 : length >= 192 ? 64 : 32);
  const int64_t ks = std::min<int64_t>(length, 512), nt = s.num_threads, hk = s.kv_heads_each;
  const int64_t groups = s.heads_each / hk, at_once = std::min(groups, (nt + hk - 1) / hk);
  const int64_t reduced = s.fp32() ? 0 : 1;
  AttentionScratch scratch;
  scratch.forward = 4 * nt * (qs * ks + 2 * qs + qs * s.d) + reduced * nt * qs * ks * s.b;
  const int64_t keys = groups > 1 ? 2 * at_once * length * hk * s.d * s.b : 0;
  const int64_t dout = groups > 1 ? at_once * length * hk * s.d * s.b : 0;
  scratch.backward = keys + dout + 4 * nt * 2 * qs * ks + reduced * nt * 2 * qs * ks * s.b + 4 * qs;
  return scratch;
}

// Normalized rows, and with QK-norm what it was given.
int64_t normalized(const Sizes& s) {
  const auto& m = s.shape.model;
  int64_t bytes = s.n * s.H * s.b + 4 * s.n;
  if (m.qk_norm == model::QkNorm::kNone) return bytes;
  bytes += s.n * (s.q_width + s.kv_width) * s.b;
  return bytes + 4 * s.n * (m.qk_norm == model::QkNorm::kHead ? (s.q_width + s.kv_width) / s.d : 2);
}

int64_t all_heads(const Sizes& s) {
  return s.n * (s.q_width + 2 * s.kv_width) * s.b;
}
int64_t head_shard(const Sizes& s) {
  return s.row * (s.heads_each + 2 * s.kv_heads_each) * s.d * s.b;
}
}  // namespace

int64_t attention_output(const Sizes& s) {
  return s.row * s.heads_each * s.d * s.b + 4 * s.heads_each * s.row;
}

void add_attention_forward(const Sizes& s, bool from_kept, Terms& terms) {
  const auto c = Category::kAttention;
  const int64_t scratch = from_kept ? 0 : scratch_of(s).forward, outputs = s.n * s.q_width * s.b;
  terms.add("normalized input, values before QK-norm", "N·(H+(hq+hk)·d)·b", c, normalized(s));
  terms.add("queries, keys, values of own tokens", "N·(hq+2hk)·d·b", c, all_heads(s));
  if (s.D == 1) {
    terms.add("attention outputs", "N·hq·(d·b+4)", c, attention_output(s));
    terms.add("attention kernel", "threads and blocks", c, scratch);
    return;
  }
  terms.add("queries, keys, values of own heads", "S·(hq/D+2hk')·d·b", c, head_shard(s));
  const int64_t later = attention_output(s) + std::max(scratch, 2 * outputs);
  terms.add("exchange buffer, or outputs and their exchange", "max(S·(hq/D+2hk')·d·b, 3N·hq·d·b)", c,
            std::max(head_shard(s), later));
}

void add_attention_saved(const Sizes& s, Terms& terms) {
  const auto c = Category::kAttention;
  terms.add("normalized input, values before QK-norm", "N·(H+(hq+hk)·d)·b", c, normalized(s));
  terms.add("queries, keys, values", "S·(hq/D+2hk')·d·b", c, s.D == 1 ? all_heads(s) : head_shard(s));
  terms.add("attention outputs", "N·hq·(d·b+4), with D > 1 also as they came home", c,
            attention_output(s) + (s.D == 1 ? 0 : s.n * s.q_width * s.b));
}

void add_attention_backward(const Sizes& s, Terms& terms) {
  const auto c = Category::kAttention;
  const int64_t outputs = s.n * s.q_width * s.b, scratch = scratch_of(s).backward;
  terms.add("normalized input, values before QK-norm", "N·(H+(hq+hk)·d)·b", c, normalized(s));
  terms.add("gradient of the outputs", "N·hq·d·b", c, outputs);
  // One after the other: the projection's gradient; the exchange; the kernel; gradients on their way home;
  // the input's gradient.
  const int64_t saved = (s.D == 1 ? all_heads(s) : head_shard(s)) + attention_output(s);
  const int64_t weight_product = s.fp32() ? 0 : s.q_width * s.H * s.b;
  const int64_t gradients = s.D == 1 ? all_heads(s) : head_shard(s);
  int64_t most = saved + weight_product + (s.D == 1 ? 0 : outputs);
  if (s.D > 1) most = std::max(most, saved + 2 * outputs);
  most = std::max(most, saved + (s.D == 1 ? 0 : outputs) + gradients + scratch);
  if (s.D > 1) most = std::max(most, 2 * head_shard(s));
  if (s.D > 1) most = std::max(most, head_shard(s) + all_heads(s));
  most = std::max(most, all_heads(s) - outputs + s.n * s.H * s.b + weight_product);
  terms.add("queries, keys, values, outputs, their gradients", "2S·(hq/D+2hk')·d·b + N·hq·(d·b+4) + kernel",
            c, most);
}

void add_feed_forward(const Sizes& s, int64_t intermediate, bool backward, Terms& terms) {
  const int64_t tile = ops::feed_forward_tile(s.n, intermediate, s.b, s.step.mlp_tile_tokens);
  const bool keeps = s.keeps_all() && !backward;  // gate and up of all rows
  const int64_t values = keeps ? 2 * s.n + tile : 3 * tile;
  terms.add("gate, up, activation", keeps ? "(2N+T)·I·b" : "3T·I·b", Category::kFfn,
            values * intermediate * s.b);
  if (backward && !s.fp32()) {
    terms.add("product of a weight gradient", "2I·H·b", Category::kGrads, 2 * intermediate * s.H * s.b);
  }
}

}  // namespace steppe::plan
