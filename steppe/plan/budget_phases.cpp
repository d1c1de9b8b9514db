#include <algorithm>
#include <array>
#include <map>
#include <string>

#include "steppe/plan/budget_sizes.h"

namespace steppe::plan {
namespace {

using memory::Category;

constexpr int64_t kRouterTileRows = 1024;

// What a micro-batch keeps besides boundaries.
void add_micro_batch(const Sizes& s, Terms& terms) {
  const int64_t ids = s.P == 1 ? 4 : 12;
  terms.add("tokens, targets, rotary tables", "N·(4d+8…20)", Category::kBatch, s.n * (4 * s.d + 8 + ids));
  terms.add("expert ids and weights of all layers", "8·L·N·k", Category::kRouting,
            num_moe_layers(s) * (8 * s.n * s.k + 8 * s.expected.num_chunks * s.E));
  if (s.step.balance_coeff > 0)
    terms.add("gradient of the balance loss", "4·L·E", Category::kRouting, 4 * s.L * s.E);
  terms.add("accumulators of loss, norm, flags", "a few per layer", Category::kControl,
            8 * (s.L + 1) + 32 + 8 * (2 * s.L + 3));
}

// Live at a layer: those that stay on the device, of the layers up to it, and of those that travel its own
// and the one before.
template <class OnHost>
int64_t live_at(int64_t layer, OnHost on_host) {
  int64_t count = 0;
  for (int64_t l = 0; l <= layer; ++l) count += !on_host(l) || l >= layer - 1 ? 1 : 0;
  return count;
}

void add_layer_inputs(const Sizes& s, int64_t count, Terms& terms) {
  terms.add("layer inputs", s.host_boundaries > 0 ? "(ℓ−q)·N·H·b + 2N·H·b" : "ℓ·N·H·b", Category::kBoundary,
            count * s.n * s.H * s.b);
}

// Attention outputs kept, but for the layer's own.
void add_outputs(const Sizes& s, int64_t layer, Terms& terms) {
  int64_t count = 0;
  for (int64_t l = 0; l < layer; ++l) {
    const auto placement = s.output_of(l);
    count += placement == offload::OutputPlacement::kDevice ||
                     (placement == offload::OutputPlacement::kHost && l == layer - 1)
                 ? 1
                 : 0;
  }
  terms.add("attention outputs kept", "ℓ·S·hq/D·(d·b+4)", Category::kSaved, count * attention_output(s));
}

void add_kept(const Sizes& s, int64_t kept, Terms& terms) {
  if (!s.keeps_all()) return;
  int64_t expected = 0, guaranteed = 0;
  for (int64_t l = 0; l < kept; ++l) {
    expected += kept_by_layer(s, l, s.expected), guaranteed += kept_by_layer(s, l, s.guaranteed);
  }
  terms.add("everything kept of the layers", "activation_checkpoint.mode = \"none\"", Category::kSaved,
            expected, guaranteed);
}

// Inputs of the layers up to `layer`, and all that the first `kept` layers keep.
void add_boundaries(const Sizes& s, int64_t layer, int64_t kept, Terms& terms) {
  add_layer_inputs(s, live_at(layer, [&](int64_t l) { return l < s.host_boundaries; }), terms);
  add_outputs(s, layer, terms);
  add_kept(s, kept, terms);
}

void add_behind_all_layers(const Sizes& s, Terms& terms) {
  add_layer_inputs(s, s.L - s.host_boundaries, terms);
  int64_t outputs = 0;
  for (int64_t l = 0; l < s.L; ++l) outputs += s.output_of(l) == offload::OutputPlacement::kDevice ? 1 : 0;
  terms.add("attention outputs kept", "L·S·hq/D·(d·b+4)", Category::kSaved, outputs * attention_output(s));
  add_kept(s, s.L, terms);
}

// Gradients on the host. The units at work have theirs on the device, those of the last two leave, and those
// that are next come back, if the step has added to them before.
void add_host_gradients(const Sizes& s, int64_t at_work, int64_t leaving, int64_t next, Terms& terms) {
  if (!s.state.host_gradients) return;
  terms.add("gradients of units at work, of two that leave", "4·2·(Θe/Ep+Θℓ/W)", Category::kGrads,
            4 * (at_work + leaving));
  terms.add("gradients of the units that are next", "4·(Θe/Ep+Θℓ/W)", Category::kGrads, 4 * next);
}

int64_t dense_shard(const Sizes& s, int64_t layer) {
  return dense_unit(s, layer) / s.W;
}

int64_t experts_of(const Sizes& s, int64_t layer) {
  return s.shape.model.is_dense_layer(layer) ? 0 : expert_unit(s);
}

// While the layer goes backward; of -1: behind all of them.
int64_t leaving_at(const Sizes& s, int64_t layer) {
  std::array<int64_t, 2> last = {table_unit(s), norm_unit(s) / s.W};
  const auto leaves = [&](int64_t elements) {
    if (elements > 0) last = {last[1], elements};
  };
  for (int64_t before = s.L - 1; before > layer; --before) {
    leaves(experts_of(s, before));
    if (before + 1 < s.L) leaves(dense_shard(s, before + 1));
  }
  if (layer < 0) leaves(dense_shard(s, 0));
  return last[0] + last[1];
}

bool comes_back(const Sizes& s) {
  return s.num_micro_batches > 1;
}

// Of the layer that goes backward next; below 0, of the embedding.
int64_t next_gradients(const Sizes& s, int64_t layer) {
  if (layer < 0) return comes_back(s) || s.shape.model.tie_word_embeddings ? table_unit(s) : 0;
  if (!comes_back(s)) return 0;
  return dense_shard(s, layer) + experts_of(s, layer);
}

// The last micro-batch's embedding still leaves during the first layer; the head comes back during the last.
void add_host_gradients_forward(const Sizes& s, int64_t layer, Terms& terms) {
  if (!s.state.host_gradients || !comes_back(s)) return;
  const int64_t leaving = layer == 0 ? table_unit(s) + dense_shard(s, 0) : 0;
  const int64_t next = layer + 1 == s.L ? table_unit(s) : 0;
  terms.add("gradients that leave or come back", "4·Θv/P", Category::kGrads, 4 * (leaving + next));
}

void add_gathered(const Sizes& s, int64_t layer, int64_t next, Terms& terms) {
  if (s.W == 1) return;
  const bool both = next >= 0 && next < s.L;
  terms.add("gathered weights of two layers", "2b·Θℓ", Category::kGathered,
            s.b * (dense_unit(s, layer) + (both ? dense_unit(s, next) : 0)));
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

int64_t stream(const Sizes& s) {
  return s.n * s.H * s.b;
}

// In the backward: scores and the gradient of the weights, and for the router's own losses log-sum-exps and
// sums of scores.
int64_t router_backward(const Sizes& s) {
  return 4 * s.n * (s.E + s.k + (s.step.router_z_coeff > 0 ? 1 : 0)) +
         (s.step.balance_coeff > 0 ? 4 * s.E : 0);
}

void add_router(const Sizes& s, bool backward, Terms& terms) {
  const int64_t cast = s.fp32() ? 0 : 4 * s.E * s.H + 4 * std::min(kRouterTileRows, s.n) * s.H;
  terms.add("router scores", "4·N·E", Category::kRouting, backward ? router_backward(s) : 4 * s.n * s.E);
  terms.add("router in fp32", "4·E·H + 4·1024·H", Category::kRouting, cast);
}

class PhaseList {
 public:
  PhaseList(const Sizes& s, std::vector<Phase>& phases) : s_(s), phases_(phases) {}

  template <class Fill>
  void add(std::string name, const Fill& fill) {
    Phase phase{std::move(name), {}};
    Terms terms(phase.terms);
    add_micro_batch(s_, terms);
    fill(terms);
    phases_.push_back(std::move(phase));
  }

  void add_layer(int64_t layer) {
    const auto& s = s_;
    const bool dense = s.shape.model.is_dense_layer(layer);
    const std::string kind = dense ? "dense layer " : "MoE layer ", number = std::to_string(layer);
    add("attention forward, " + kind + number, [&](Terms& terms) {
      add_boundaries(s, layer, layer, terms);
      add_gathered(s, layer, layer + 1, terms);
      add_host_gradients_forward(s, layer, terms);
      terms.add("residual stream", "N·H·b", Category::kResidual, stream(s));
      add_attention_forward(s, false, terms);
    });
    add((dense ? "feed-forward, " : "experts forward, ") + kind + number, [&](Terms& terms) {
      add_boundaries(s, layer, layer, terms);
      add_gathered(s, layer, layer + 1, terms);
      add_host_gradients_forward(s, layer, terms);
      terms.add("residual stream, normalized, output", "3N·H·b", Category::kResidual,
                3 * stream(s) + 4 * s.n);
      if (s.keeps_all()) {
        add_attention_saved(s, terms);
      } else if (s.keeps_output(layer)) {
        terms.add("attention outputs of the layer", "S·hq/D·(d·b+4)", Category::kAttention,
                  attention_output(s));
      }
      if (dense) return add_feed_forward(s, s.shape.model.intermediate_size, false, terms);
      terms.add("router scores", "4·N·E", Category::kRouting, s.keeps_all() ? 4 * s.n * s.E : 0);
      add_dispatch_forward(s, terms);
      if (s.keeps_all()) {
        const bool chunks = s.expected.num_chunks > 1;
        const int64_t row = ((chunks ? 0 : s.H) + 2 * s.I) * s.b;
        terms.add("rows, gate and up kept", chunks ? "R·2I·b" : "R·(H+2I)·b", Category::kSaved,
                  s.expected.received * row, s.guaranteed.received * row);
      }
    });
    if (s.keeps_all()) {
      add_kept_backward(layer);
    } else {
      add_recomputed_backward(layer, kind + number);
    }
  }

  void add_head() {
    const auto& s = s_;
    add("vocabulary loss", [&](Terms& terms) {
      add_behind_all_layers(s, terms);
      if (s.state.host_gradients) {
        terms.add("gradients of the head", "4·Θv/P", Category::kGrads, 4 * table_unit(s));
      }
      terms.add("stream, normalized and its gradient", "3N·H·b", Category::kResidual,
                3 * stream(s) + 4 * s.n);
      terms.add("final norm", "a few H", Category::kGathered, 8 * norm_unit(s));
      add_vocab_loss(s, terms);
    });
  }

  void add_embedding() {
    const auto& s = s_;
    add("embedding", [&](Terms& terms) {
      add_host_gradients(s, table_unit(s), leaving_at(s, -1), 0, terms);
      terms.add("stream", "N·H·b", Category::kBoundary, stream(s));
      if (s.P > 1) terms.add("rows on their way", "2N·H·b", Category::kVocab, 2 * stream(s));
    });
  }

  void add_optimizer() {
    const auto& s = s_;
    if (s.state.placement != optim::Placement::kStream) return;
    Phase phase{"optimizer", {}};
    Terms terms(phase.terms);
    const int64_t bytes =
        (masters_double(s) ? 0 : 4) + 2 * moment_bytes(s) + (s.state.host_gradients ? 4 : 0);
    terms.add("optimizer staging", "s·β·(12…16)", Category::kStaging, bucket_slots(s) * bucket(s) * bytes);
    phases_.push_back(std::move(phase));
  }

  void add_replicas() {
    const auto& s = s_;
    const bool experts = num_moe_layers(s) > 0 && s.W > s.Ep;
    int64_t most = experts ? 4 * expert_unit(s) + 4 * expert_unit(s) * s.Ep / s.W : 0;
    if (s.W > s.P) most = std::max(most, 4 * table_unit(s) + 4 * table_unit(s) * s.P / s.W);
    add("gradients over replicas", [&](Terms& terms) {
      const int64_t largest = std::max(experts ? expert_unit(s) : 0, table_unit(s));
      add_host_gradients(s, largest, largest + dense_shard(s, s.L - 1), 0, terms);
      terms.add("a unit's gradient and its sum", "4·Θe/Ep·(1+Ep/W)", Category::kStaging, most);
    });
  }

 private:
  void add_backward_frame(int64_t layer, Terms& terms) const {
    add_boundaries(s_, layer, s_.keeps_all() ? layer + 1 : 0, terms);
    add_gathered(s_, layer, layer - 1, terms);
    add_gradients(layer, terms);
  }

  void add_gradients(int64_t layer, Terms& terms) const {
    add_layer_gradients(s_, layer, terms);
    const int64_t summed = layer + 1 < s_.L ? dense_shard(s_, layer + 1) : 0;
    add_host_gradients(s_, dense_shard(s_, layer) + summed + experts_of(s_, layer), leaving_at(s_, layer),
                       next_gradients(s_, layer - 1), terms);
  }

  void add_recomputed_backward(int64_t layer, const std::string& name) {
    const auto& s = s_;
    const bool dense = s.shape.model.is_dense_layer(layer);
    const int64_t shared = s.shape.model.shared_expert_intermediate_size;
    add("attention recomputed, " + name, [&](Terms& terms) {
      add_backward_frame(layer, terms);
      terms.add("gradient and stream", "2N·H·b", Category::kResidual, 2 * stream(s));
      add_attention_forward(s, s.keeps_output(layer), terms);
    });
    const auto inner = [&](Terms& terms) {
      add_backward_frame(layer, terms);
      terms.add("gradient, stream, normalized and its gradient", "4N·H·b", Category::kResidual,
                4 * stream(s) + 4 * s.n);
      add_attention_saved(s, terms);
    };
    if (dense) {
      add("feed-forward backward, " + name, [&](Terms& terms) {
        inner(terms);
        add_feed_forward(s, s.shape.model.intermediate_size, true, terms);
      });
    } else {
      add("experts backward, " + name, [&](Terms& terms) {
        add_backward_frame(layer, terms);
        // The gradient of the normalized stream comes in its place.
        terms.add("gradient, stream, normalized", "3N·H·b", Category::kResidual, 3 * stream(s) + 4 * s.n);
        add_attention_saved(s, terms);
        terms.add("router scores", "4·N·E", Category::kRouting, router_backward(s));
        add_dispatch_backward(s, terms);
      });
      add("router backward, " + name, [&](Terms& terms) {
        inner(terms);
        add_router(s, true, terms);
        if (shared > 0) add_feed_forward(s, shared, true, terms);
      });
    }
    add("attention backward, " + name, [&](Terms& terms) {
      add_backward_frame(layer, terms);
      terms.add("gradient", "N·H·b", Category::kResidual, stream(s));
      add_attention_backward(s, terms);
    });
  }

  // Kept tensors are consumed; their gradients come beside.
  void add_kept_backward(int64_t layer) {
    const auto& s = s_;
    const auto& m = s.shape.model;
    add("backward of kept layer " + std::to_string(layer), [&](Terms& terms) {
      add_backward_frame(layer, terms);
      terms.add("gradients of stream and normalized", "2N·H·b", Category::kResidual, 2 * stream(s));
      terms.add("gradient of expert weights", "4·N·k", Category::kRouting, 4 * s.n * s.k);
      if (m.is_dense_layer(layer)) {
        terms.add("activation", "N·I·b", Category::kFfn, s.n * m.intermediate_size * s.b);
        return;
      }
      if (s.expected.num_chunks > 1) return add_dispatch_backward(s, terms);
      const auto bytes = [&](const RoutedRows& rows) {
        const int64_t sent = s.n * s.k;
        return s.Ep == 1 ? sent * s.H * s.b + 4 * sent
                         : std::max(2 * rows.received, rows.received + sent) * s.H * s.b + 4 * rows.received;
      };
      terms.add("gradient rows", "2R·H·b", Category::kDispatch, bytes(s.expected), bytes(s.guaranteed));
      terms.add("activations of experts", "R·I·b", Category::kExpert, s.expected.received * s.I * s.b,
                s.guaranteed.received * s.I * s.b);
      const int64_t expert = 3 * s.H * s.I;
      terms.add("weights of foreign experts", "helped·3H·I·b", Category::kGathered,
                s.expected.helped * expert * s.b, s.guaranteed.helped * expert * s.b);
      terms.add("gradients of foreign experts", "4·helped·3H·I", Category::kGrads,
                4 * s.expected.helped * expert, 4 * s.guaranteed.helped * expert);
      if (!s.fp32())
        terms.add("product of a weight gradient", "2I·H·b", Category::kGrads, 2 * s.I * s.H * s.b);
    });
    add("attention backward of kept layer " + std::to_string(layer), [&](Terms& terms) {
      add_boundaries(s, layer - 1, layer, terms);
      add_gathered(s_, layer, layer - 1, terms);
      add_gradients(layer, terms);
      terms.add("gradient and input", "2N·H·b", Category::kResidual, 2 * stream(s));
      add_attention_backward(s, terms);
    });
  }

  const Sizes& s_;
  std::vector<Phase>& phases_;
};

// Of layers with the same neighbours the last: earlier ones keep less.
std::vector<int64_t> fullest_layers(const Sizes& s) {
  const auto kind_of = [&](int64_t layer) {
    return layer < 0 || layer >= s.L ? 0 : s.shape.model.is_dense_layer(layer) ? 1 : 2;
  };
  std::map<std::array<int, 3>, int64_t> last;
  for (int64_t layer = 0; layer < s.L; ++layer) {
    last[{kind_of(layer - 1), kind_of(layer), kind_of(layer + 1)}] = layer;
  }
  std::vector<int64_t> layers;
  for (const auto& [kinds, layer] : last) layers.push_back(layer);
  return layers;
}

}  // namespace

std::vector<Phase> phases_of(const Sizes& s) {
  std::vector<Phase> phases;
  PhaseList list(s, phases);
  for (const int64_t layer : fullest_layers(s)) list.add_layer(layer);
  list.add_head();
  list.add_embedding();
  list.add_replicas();
  list.add_optimizer();
  return phases;
}

}  // namespace steppe::plan
