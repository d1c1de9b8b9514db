#include "steppe/plan/budget_gradients.h"

#include <array>

namespace steppe::plan {
namespace {

using memory::Category;

// Gradients on the host. The units at work have theirs on the device, those of the last two leave, and those
// that are next come back, if the step has added to them before.
void add_host_gradients(const Sizes& s, int64_t at_work, int64_t leaving, int64_t next, Terms& terms) {
  if (!s.state.host_gradients) return;
  terms.add("gradients of units at work, of two that leave", "g·2·(Θe/Ep+Θℓ/W)", Category::kGrads,
            s.g * (at_work + leaving));
  terms.add("gradients of the units that are next", "g·(Θe/Ep+Θℓ/W)", Category::kGrads, s.g * next);
}

// Where accumulators are bf16, what is added to in fp32 beside them, or on the host in their place.
void add_fp32_gradients(const Sizes& s, int64_t elements, Terms& terms) {
  if (s.narrow_gradients()) terms.add("gradients at work, in fp32", "4·Θ", Category::kGrads, 4 * elements);
}

// Of bf16 accumulators, that need not wait for other ranks' parts.
bool rounds_at_once(const Sizes& s) {
  return s.narrow_gradients() && s.W == 1;
}

int64_t dense_shard(const Sizes& s, int64_t layer) {
  return dense_unit(s, layer) / s.W;
}

int64_t experts_of(const Sizes& s, int64_t layer) {
  return s.shape.model.is_dense_layer(layer) ? 0 : expert_unit(s);
}

// The two units that were given back last when those layers have gone backward that are above `layer`:
// experts with their layer, dense shards when the next layer's gradient sets out.
std::array<int64_t, 2> given_back_above(const Sizes& s, int64_t layer) {
  std::array<int64_t, 2> last = {table_unit(s), norm_unit(s) / s.W};
  const auto leaves = [&](int64_t elements) {
    if (elements > 0) last = {last[1], elements};
  };
  for (int64_t before = s.L - 1; before > layer; --before) {
    leaves(experts_of(s, before));
    if (rounds_at_once(s)) leaves(dense_shard(s, before));
    if (!rounds_at_once(s) && before + 1 < s.L) leaves(dense_shard(s, before + 1));
  }
  return last;
}

int64_t leaving_at(const Sizes& s, int64_t layer) {
  const auto last = given_back_above(s, layer);
  return last[0] + last[1];
}

int64_t leaving_behind_all(const Sizes& s) {
  const auto last = given_back_above(s, -1);
  return rounds_at_once(s) ? last[0] + last[1] : last[1] + dense_shard(s, 0);
}

// Of the layer that goes backward next; below 0, of the embedding.
int64_t next_gradients(const Sizes& s, int64_t layer) {
  if (layer < 0) return s.adds_to_gradients || s.shape.model.tie_word_embeddings ? table_unit(s) : 0;
  if (!s.adds_to_gradients) return 0;
  return dense_shard(s, layer) + experts_of(s, layer);
}

// A layer's gradient in full, and the one before it on its way.
void add_layer_gradients(const Sizes& s, int64_t layer, Terms& terms) {
  if (s.W == 1) return;
  const int64_t mine = dense_unit(s, layer);
  terms.add("dense gradient of a layer", "4·Θℓ", Category::kGrads, 4 * mine);
  if (layer + 1 >= s.L) return;
  const int64_t before = dense_unit(s, layer + 1);
  terms.add("dense gradient on its way", "2b·Θℓ", Category::kStaging, 2 * s.b * before);
}

int64_t sum_of(const Sizes& s, int64_t unit, int64_t replicas) {
  return replicas == 1 ? 0 : s.g * unit + 4 * unit / replicas;
}

}  // namespace

// The last micro-batch's embedding still leaves during the first layer; the head comes back during the last.
void add_gradients_forward(const Sizes& s, int64_t layer, Terms& terms) {
  if (!s.state.host_gradients || !s.adds_to_gradients) return;
  const int64_t leaving = layer == 0 ? table_unit(s) + dense_shard(s, 0) : 0;
  const int64_t next = layer + 1 == s.L ? table_unit(s) : 0;
  terms.add("gradients that leave or come back", "g·Θv/P", Category::kGrads, s.g * (leaving + next));
}

void add_gradients_backward(const Sizes& s, int64_t layer, Terms& terms) {
  add_layer_gradients(s, layer, terms);
  const int64_t summed = layer + 1 < s.L && !rounds_at_once(s) ? dense_shard(s, layer + 1) : 0;
  const int64_t in_fp32 = dense_shard(s, layer) + summed;
  add_host_gradients(s, (s.narrow_gradients() ? 0 : in_fp32) + experts_of(s, layer), leaving_at(s, layer),
                     next_gradients(s, layer - 1), terms);
  add_fp32_gradients(s, in_fp32, terms);
}

void add_gradients_setting_out(const Sizes& s, int64_t layer, Terms& terms) {
  const int64_t unit = dense_unit(s, layer), shard = dense_shard(s, layer);
  add_host_gradients(s, s.narrow_gradients() ? 0 : shard, leaving_at(s, layer - 1),
                     next_gradients(s, layer - 1), terms);
  add_fp32_gradients(s, shard, terms);
  terms.add("dense gradient of a layer", "4·Θℓ", Category::kGrads, 4 * unit);
  terms.add("the same on its way", "b·Θℓ", Category::kStaging, s.b * unit);
}

void add_gradients_of_head(const Sizes& s, Terms& terms) {
  if (!s.state.host_gradients && !s.narrow_gradients()) return;
  terms.add("gradients of the head", "4·Θv/P", Category::kGrads, 4 * table_unit(s));
}

void add_gradients_of_embedding(const Sizes& s, Terms& terms) {
  add_final_gradients_of_embedding(s, terms);
  add_fp32_gradients(s, table_unit(s), terms);
}

void add_final_gradients_of_embedding(const Sizes& s, Terms& terms) {
  add_host_gradients(s, table_unit(s), leaving_behind_all(s), 0, terms);
}

int64_t sum_of_experts(const Sizes& s) {
  return sum_of(s, expert_unit(s), s.W / s.Ep);
}
int64_t sum_of_table(const Sizes& s) {
  return sum_of(s, table_unit(s), s.W / s.P);
}

bool gradients_become_final(const Sizes& s) {
  return s.state.host_gradients && s.is_last;
}

}  // namespace steppe::plan
