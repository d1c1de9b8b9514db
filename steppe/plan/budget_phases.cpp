#include <algorithm>
#include <array>
#include <map>
#include <string>

#include "steppe/plan/budget_gradients.h"
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

void add_gathered(const Sizes& s, int64_t layer, int64_t next, Terms& terms) {
  if (s.W == 1) return;
  const bool both = next >= 0 && next < s.L;
  terms.add("gathered weights of two layers", "2b·Θℓ", Category::kGathered,
            s.b * (dense_unit(s, layer) + (both ? dense_unit(s, next) : 0)));
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
      add_gradients_forward(s, layer, terms);
      terms.add("residual stream", "N·H·b", Category::kResidual, stream(s));
      add_attention_forward(s, false, terms);
    });
    add((dense ? "feed-forward, " : "experts forward, ") + kind + number, [&](Terms& terms) {
      add_boundaries(s, layer, layer, terms);
      add_gathered(s, layer, layer + 1, terms);
      add_gradients_forward(s, layer, terms);
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
    add_end_of_backward(layer, number);
    if (!gradients_become_final(s) || dense || s.W == s.Ep) return;
    add("gradients of experts over replicas, layer " + number, [&](Terms& terms) {
      add_left_of_backward(layer, terms);
      add_gradients_backward(s, layer, terms);
      terms.add("a unit's gradient and its sum", "Θe/Ep·(g+4Ep/W)", Category::kStaging, sum_of_experts(s));
    });
  }

  void add_head() {
    const auto& s = s_;
    const auto frame = [&](Terms& terms) {
      add_behind_all_layers(s, terms);
      terms.add("stream, normalized and its gradient", "3N·H·b", Category::kResidual,
                3 * stream(s) + 4 * s.n);
      terms.add("final norm", "a few H", Category::kGathered, 8 * norm_unit(s));
    };
    add("vocabulary loss", [&](Terms& terms) {
      frame(terms);
      add_gradients_of_head(s, terms);
      add_vocab_loss(s, terms);
    });
    if (!gradients_become_final(s) || s.shape.model.tie_word_embeddings) return;
    add("gradients of the head over replicas", [&](Terms& terms) {
      frame(terms);
      terms.add("gradients of the head", "g·Θv/P", Category::kGrads, s.g * table_unit(s));
      terms.add("a unit's gradient and its sum", "Θv/P·(g+4P/W)", Category::kStaging, sum_of_table(s));
    });
  }

  void add_embedding() {
    const auto& s = s_;
    add("embedding", [&](Terms& terms) {
      add_gradients_of_embedding(s, terms);
      terms.add("stream", "N·H·b", Category::kBoundary, stream(s));
      if (s.P > 1) terms.add("rows on their way", "2N·H·b", Category::kVocab, 2 * stream(s));
    });
    if (!gradients_become_final(s)) return;
    add("gradients of the embedding over replicas", [&](Terms& terms) {
      add_final_gradients_of_embedding(s, terms);
      terms.add("stream", "N·H·b", Category::kBoundary, stream(s));
      terms.add("a unit's gradient and its sum", "Θv/P·(g+4P/W)", Category::kStaging, sum_of_table(s));
    });
  }

  void add_optimizer() {
    const auto& s = s_;
    if (s.state.placement != optim::Placement::kStream) return;
    Phase phase{"optimizer", {}};
    Terms terms(phase.terms);
    const int64_t bytes =
        (masters_double(s) ? 0 : 4) + 2 * moment_bytes(s) + (s.state.host_gradients ? s.g : 0);
    terms.add("optimizer staging", "s·β·(12…16)", Category::kStaging, bucket_slots(s) * bucket(s) * bytes);
    phases_.push_back(std::move(phase));
  }

  // Accumulators on the device are summed once all are final.
  void add_replicas() {
    const auto& s = s_;
    if (s.state.host_gradients) return;
    const int64_t experts = num_moe_layers(s) > 0 ? sum_of_experts(s) : 0;
    add("gradients over replicas", [&](Terms& terms) {
      terms.add("a unit's gradient and its sum", "Θe/Ep·(g+4Ep/W)", Category::kStaging,
                std::max(experts, sum_of_table(s)));
    });
  }

 private:
  void add_backward_frame(int64_t layer, Terms& terms) const {
    add_boundaries(s_, layer, s_.keeps_all() ? layer + 1 : 0, terms);
    add_gathered(s_, layer, layer - 1, terms);
    add_gradients_backward(s_, layer, terms);
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
                4 * stream(s) + 8 * s.n);
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

  // When a layer's work is done.
  void add_left_of_backward(int64_t layer, Terms& terms) const {
    add_boundaries(s_, layer, s_.keeps_all() ? layer : 0, terms);
    add_gathered(s_, layer, layer - 1, terms);
    terms.add("gradient", "N·H·b", Category::kResidual, stream(s_));
  }

  // Its dense gradient sets out, when nothing else of the layer is left.
  void add_end_of_backward(int64_t layer, const std::string& number) {
    const auto& s = s_;
    if (s.W == 1) return;
    add("dense gradient sets out, layer " + number, [&](Terms& terms) {
      add_left_of_backward(layer, terms);
      add_gradients_setting_out(s, layer, terms);
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
        if (!s.fp32()) {
          terms.add("product of a weight gradient", "2I·H·b", Category::kGrads,
                    2 * m.intermediate_size * s.H * s.b);
        }
        return;
      }
      add_dispatch_backward(s, terms);
    });
    add("attention backward of kept layer " + std::to_string(layer), [&](Terms& terms) {
      add_boundaries(s, layer - 1, layer, terms);
      add_gathered(s_, layer, layer - 1, terms);
      add_gradients_backward(s, layer, terms);
      terms.add("gradient and input", "2N·H·b", Category::kResidual, 2 * stream(s));
      add_attention_backward(s, terms);
    });
  }

  const Sizes& s_;
  std::vector<Phase>& phases_;
};

// Of layers with the same neighbours the last: earlier ones keep less. Neighbours are the layer that is next
// in the backward, and those before it there, whose gradients may still be leaving for the host (leaving_at).
// Layers are the same where their attention outputs are in the same place, too.
std::vector<int64_t> fullest_layers(const Sizes& s) {
  const auto kind_of = [&](int64_t layer) {
    if (layer < 0 || layer >= s.L) return 0;
    return (s.shape.model.is_dense_layer(layer) ? 1 : 2) + 2 * static_cast<int>(s.output_of(layer));
  };
  std::map<std::array<int, 5>, int64_t> last;
  for (int64_t layer = 0; layer < s.L; ++layer) {
    std::array<int, 5> kinds{};
    for (int64_t n = 0; n < 5; ++n) kinds[n] = kind_of(layer - 1 + n);
    last[kinds] = layer;
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
