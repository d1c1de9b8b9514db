#include "steppe/model/decoder_layer.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "steppe/comm/rank_threads.h"
#include "steppe/kernels/rotary.h"
#include "steppe/memory/scope.h"
#include "steppe/model/decoder_layer_reference.h"

namespace steppe::model {
namespace {

enum class Half { kExperts, kExpertsAndShared, kDense };

struct Case {
  std::string name;
  QkNorm qk_norm = QkNorm::kHead;
  Half half = Half::kExpertsAndShared;
  int64_t kv_heads = 2;
  bool normalize = true;
  bool biased = false;
  int64_t tile_rows = 0;
  std::vector<int64_t> bounds = {0, 7, 8, 21, 33};
  at::ScalarType dtype = at::kFloat;
  double clip_qkv = 0;
  double balance = 0, z_coeff = 0;  // the router's own losses
};
void PrintTo(const Case& c, std::ostream* out) {
  *out << c.name;
}

ModelConfig config_of(const Case& c) {
  ModelConfig m;
  m.num_hidden_layers = 1;
  m.first_k_dense_replace = c.half == Half::kDense ? 1 : 0;
  m.hidden_size = 24;
  m.num_attention_heads = 4;
  m.num_key_value_heads = c.kv_heads;
  m.head_dim = 16;
  m.intermediate_size = 40;
  m.vocab_size = 11;
  m.max_position_embeddings = 64;
  m.num_experts = 6;
  m.num_experts_per_tok = 2;
  m.moe_intermediate_size = 20;
  m.norm_topk_prob = c.normalize;
  m.shared_expert_intermediate_size = c.half == Half::kExpertsAndShared ? 12 : 0;
  m.qk_norm = c.qk_norm;
  m.clip_qkv = c.clip_qkv;
  m.initializer_range = 0.2;
  return m;
}

// Every tensor of a layer that is there, by name.
using Named = std::vector<std::pair<std::string, at::Tensor*>>;
Named named(DenseViews& d, at::Tensor& gate_up, at::Tensor& down) {
  Named all = {{"input_norm", &d.input_norm_H},
               {"q", &d.q_H},
               {"k", &d.k_H},
               {"v", &d.v_H},
               {"q_norm", &d.q_norm},
               {"k_norm", &d.k_norm},
               {"o", &d.o_H},
               {"post_norm", &d.post_norm_H},
               {"router", &d.router_EH},
               {"dense gate_up", &d.feed_forward.gate_up_2IH},
               {"dense down", &d.feed_forward.down_HI},
               {"shared gate_up", &d.shared_expert.gate_up_2IH},
               {"shared down", &d.shared_expert.down_HI},
               {"experts' gate_up", &gate_up},
               {"experts' down", &down}};
  std::erase_if(all, [](const auto& entry) { return !entry.second->defined(); });
  return all;
}
Named named(LayerWeights& w) {
  return named(w.dense, w.experts.gate_up_E2IH, w.experts.down_EHI);
}
Named named(LayerGradients& g) {
  return named(g.dense, g.experts.gate_up_E2IH, g.experts.down_EHI);
}

// One layer of one rank, its weights and its input.
struct Layer {
  explicit Layer(const Case& given, comm::Groups made)
      : c(given),
        config(config_of(given)),
        layout({}, 0),
        groups(std::move(made)),
        context{at::kCPU, given.dtype, &counters},
        store(config, layout, groups, context) {
    store.initialize(3);
    at::manual_seed(11);
    weights.dense = store.dense_views(0, store.dense(0).working());
    if (c.half != Half::kDense) weights.experts = store.expert_weights(0);
    for (const auto& [name, tensor] : named(weights)) {
      if (tensor->dim() == 1)
        tensor->add_(at::randn(tensor->sizes()).to(c.dtype), 0.3);  // norms away from one
    }
    const int64_t n = c.bounds.back(), half = config.head_dim / 2;
    std::vector<int32_t> positions;
    for (int64_t t = 0; t < n; ++t) {
      row.token_ids.push_back(t);
      positions.push_back(static_cast<int32_t>(3 * t % 29));
    }
    row.tokens_of_rank = {n};
    row.document_bounds = c.bounds;
    row.cos_nh = at::empty({n, half}), row.sin_nh = at::empty({n, half});
    kernels::rotary_tables(row.cos_nh, row.sin_nh, at::tensor(positions, at::kInt),
                           rotary_frequencies(config).inverse, 1);
    h = at::randn({n, config.hidden_size}).to(c.dtype), dout = at::randn({n, config.hidden_size}).to(c.dtype);
    if (c.biased) bias = at::randn({config.num_experts}) * 0.3;
    if (c.balance > 0) router_losses = {at::rand({config.num_experts}) * c.balance, 0, at::zeros({1}), {}};
    if (c.z_coeff > 0) router_losses.square_sum_1 = at::zeros({1}, at::kDouble);
    router_losses.z_coeff = c.z_coeff;
  }

  Case c;
  ModelConfig config;
  layout::RankLayout layout;
  comm::Groups groups;
  Counters counters;
  ops::OpContext context;
  ModelWeights store;
  LayerWeights weights;
  TokenRow row;
  at::Tensor h, dout, bias;
  ops::RouterLosses router_losses;
};

void with_layer(const Case& c, const std::function<void(Layer&)>& body) {
  comm::run_ranks(1, [&](int rank, const c10::intrusive_ptr<c10d::Store>& store) {
    const layout::RankLayout layout({}, rank);
    Layer layer(c, comm::make_groups(layout, store, std::chrono::minutes(5), /*cuda=*/false));
    body(layer);
  });
}

// In bf16 the router's choice could hang on a rounding; there it is given.
std::unique_ptr<ops::RoutingSource> routing_for(const Layer& layer) {
  if (layer.c.dtype == at::kFloat) return std::make_unique<ops::TopKRouting>();
  return std::make_unique<ops::GivenRouting>(ops::balanced_routing(
      {layer.config.num_experts, layer.config.num_experts_per_tok, layer.config.norm_topk_prob}));
}

struct Result {
  at::Tensor out, ids, weights, dh;
  std::vector<std::pair<std::string, at::Tensor>> grads;
};

constexpr double kBefore = 0.25;  // what the accumulators hold already

enum class Keep { kNothing, kAttentionOutput, kEverything };

Result run(Layer& layer, Keep keep) {
  const auto routing = routing_for(layer);
  const LayerContext context{layer.context, layer.config, layer.groups, *routing, {layer.c.tile_rows}};
  const LayerCall call{context, layer.row, 0, layer.weights, layer.bias, layer.router_losses};
  LayerGradients grads{layer.store.dense_views(0, at::full({layer.store.dense(0).numel()}, kBefore)), {}};
  if (layer.c.half != Half::kDense) {
    layer.store.experts(0).grad().fill_(kBefore);
    grads.experts = layer.store.expert_gradients(0);
  }
  auto& ledger = memory::current_ledger();
  const auto before = ledger.live_bytes();
  Result result;
  LayerState state;
  state.keep_attention_output = keep == Keep::kAttentionOutput;
  result.out = layer_forward(call, layer.h, state, keep == Keep::kEverything, memory::Category::kBoundary);
  if (state.routing) {
    result.ids = state.routing->ids_Nk.to(at::kLong);
    result.weights = state.routing->weights_Nk.clone();
  }
  const auto bytes = [](const at::Tensor& t) { return t.defined() ? static_cast<int64_t>(t.nbytes()) : 0; };
  const int64_t ours = bytes(result.ids) + bytes(result.weights);
  const int64_t kept = ledger.live_bytes() - before - bytes(result.out) - ours;
  const int64_t pinned = state.routing ? bytes(state.routing->ids_Nk) + bytes(state.routing->weights_Nk) : 0;
  if (keep == Keep::kEverything) {
    EXPECT_GE(kept, pinned);
  } else {
    const int64_t output = state.attention_output ? bytes(state.attention_output->out_Shd) +
                                                        bytes(state.attention_output->lse_hS)
                                                  : 0;
    EXPECT_EQ(output > 0, keep == Keep::kAttentionOutput && layer.h.size(0) > 0);
    EXPECT_EQ(kept, pinned + output) << "nothing else may live on";
    EXPECT_EQ(ledger.live_by_category()[static_cast<size_t>(memory::Category::kSaved)], output);
  }
  result.dh = layer.dout.clone();
  layer_backward(call, grads, layer.h, result.dh, state);
  EXPECT_EQ(ledger.live_bytes() - before, bytes(result.out) + ours + bytes(result.dh))
      << "the state is consumed";
  for (const auto& [name, tensor] : named(grads)) result.grads.emplace_back(name, tensor->clone());
  return result;
}

Result reference(Layer& layer, const at::Tensor& given_ids) {
  const auto leaf = [](const at::Tensor& t) { return t.to(at::kDouble).detach().clone().requires_grad_(); };
  LayerWeights leaves = layer.weights;
  for (const auto& [name, tensor] : named(leaves)) *tensor = leaf(*tensor);
  const auto h = leaf(layer.h);
  const ReferenceInput input{layer.config,
                             0,
                             leaves,
                             h,
                             layer.row.cos_nh.to(at::kDouble),
                             layer.row.sin_nh.to(at::kDouble),
                             layer.row.document_bounds,
                             layer.bias.defined() ? layer.bias.to(at::kDouble) : at::Tensor{},
                             given_ids,
                             layer.router_losses};
  const auto output = decoder_layer_reference(input);
  auto loss = (output.out_nH * layer.dout.to(at::kDouble)).sum();
  if (output.router_loss.defined()) loss = loss + output.router_loss;
  loss.backward();
  Result result{output.out_nH.detach(), output.ids_nk, output.weights_nk, h.grad(), {}};
  for (const auto& [name, tensor] : named(leaves)) result.grads.emplace_back(name, tensor->grad());
  return result;
}

// fp32: the longest way through the layer is products over H, heads·d, the document, I and the rows of a
// weight's gradient, one behind the other. bf16: every activation on that way is rounded once, about sixteen
// of them.
double tolerance(const Layer& layer) {
  if (layer.c.dtype == at::kBFloat16) return 0x1p-8 * 16;
  const auto& m = layer.config;
  const int64_t width = m.num_attention_heads * m.head_dim;
  return 0x1p-24 * static_cast<double>(2 * m.hidden_size + width + 2 * m.head_dim + m.intermediate_size +
                                       layer.c.bounds.back());
}

void expect_near(const at::Tensor& got, const at::Tensor& want, double relative, const std::string& name) {
  ASSERT_TRUE(want.defined()) << name;
  ASSERT_EQ(got.sizes(), want.sizes()) << name;
  if (want.numel() == 0) return;
  const double largest = want.abs().max().item<double>();
  EXPECT_GT(largest, 0) << name;
  EXPECT_LE((got.to(at::kDouble) - want).abs().max().item<double>(), relative * (largest + kBefore)) << name;
}

class DecoderLayer : public ::testing::TestWithParam<Case> {};

TEST_P(DecoderLayer, MatchesAutogradInFp64) {
  with_layer(GetParam(), [](Layer& layer) {
    const auto got = run(layer, Keep::kNothing);
    const auto want = reference(layer, layer.c.dtype == at::kFloat ? at::Tensor{} : got.ids);
    const double relative = tolerance(layer);
    expect_near(got.out, want.out, relative, "out");
    expect_near(got.dh, want.dh, relative, "dh");
    if (got.ids.defined()) {
      EXPECT_TRUE(at::equal(got.ids, want.ids));
      expect_near(got.weights, want.weights, relative, "routing weights");
    }
    ASSERT_EQ(got.grads.size(), want.grads.size());
    for (size_t i = 0; i < got.grads.size(); ++i) {
      const auto& [name, grad] = got.grads[i];
      expect_near(grad.to(at::kDouble) - kBefore, want.grads[i].second, relative, name);
    }
  });
}

TEST_P(DecoderLayer, KeepingAndRecomputingGiveTheSameBits) {
  with_layer(GetParam(), [](Layer& layer) {
    const auto recomputed = run(layer, Keep::kNothing);
    for (const auto keep : {Keep::kAttentionOutput, Keep::kEverything}) {
      const auto kept = run(layer, keep);
      EXPECT_TRUE(at::equal(recomputed.out, kept.out));
      EXPECT_TRUE(at::equal(recomputed.dh, kept.dh));
      for (size_t i = 0; i < kept.grads.size(); ++i) {
        EXPECT_TRUE(at::equal(recomputed.grads[i].second, kept.grads[i].second)) << kept.grads[i].first;
      }
    }
  });
}

TEST_P(DecoderLayer, KeepingDoesLessWork) {
  with_layer(GetParam(), [](Layer& layer) {
    layer.counters.reset();
    run(layer, Keep::kNothing);
    const auto recomputed = layer.counters.flops.sum();
    layer.counters.reset();
    run(layer, Keep::kEverything);
    EXPECT_LT(layer.counters.flops.sum(), recomputed);
  });
}

// Forward and backward are 4 and 10 parts of attention's work; recomputing adds 4.
TEST_P(DecoderLayer, AKeptAttentionOutputSavesTheAttentionForward) {
  with_layer(GetParam(), [](Layer& layer) {
    layer.counters.reset();
    run(layer, Keep::kNothing);
    const auto recomputed = layer.counters.flops;
    layer.counters.reset();
    run(layer, Keep::kAttentionOutput);
    const auto kept = layer.counters.flops;
    EXPECT_EQ(kept[FlopKind::kAttention] * 18, recomputed[FlopKind::kAttention] * 14);
    EXPECT_EQ(kept.sum() - kept[FlopKind::kAttention], recomputed.sum() - recomputed[FlopKind::kAttention]);
  });
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, DecoderLayer,
    ::testing::Values(
        Case{"shared_and_head_norm"}, Case{"full_norm", QkNorm::kFull, Half::kExperts},
        Case{"no_norm", QkNorm::kNone, Half::kExperts, 1, /*normalize=*/false},
        Case{"biased_router", QkNorm::kHead, Half::kExperts, 4, true, /*biased=*/true},
        Case{"tiles", QkNorm::kHead, Half::kExpertsAndShared, 2, true, false, /*tile_rows=*/5},
        Case{"dense", QkNorm::kHead, Half::kDense}, Case{"dense_full_norm", QkNorm::kFull, Half::kDense, 4},
        Case{"one_document", QkNorm::kNone, Half::kExpertsAndShared, 2, false, false, 0, {0, 40}},
        Case{.name = "clipped_full_norm", .qk_norm = QkNorm::kFull, .half = Half::kExperts, .clip_qkv = 0.5},
        Case{.name = "clipped_head_norm", .clip_qkv = 0.5},
        Case{.name = "clipped",
             .qk_norm = QkNorm::kNone,
             .half = Half::kDense,
             .kv_heads = 4,
             .clip_qkv = 0.5},
        Case{.name = "balance_loss", .balance = 0.5},
        Case{.name = "router_z_loss", .normalize = false, .z_coeff = 0.01},
        Case{.name = "both_router_losses", .half = Half::kExperts, .balance = 0.5, .z_coeff = 0.01},
        Case{"bf16_experts",
             QkNorm::kHead,
             Half::kExpertsAndShared,
             2,
             true,
             false,
             0,
             {0, 9, 21},
             at::kBFloat16},
        Case{"bf16_dense", QkNorm::kFull, Half::kDense, 1, true, false, 0, {0, 21}, at::kBFloat16}),
    [](const auto& info) { return info.param.name; });

// Nothing to do is done: gradients keep what they held.
TEST(DecoderLayerWithoutTokens, LeavesGradientsAlone) {
  for (const auto half : {Half::kExpertsAndShared, Half::kDense}) {
    for (const auto keep : {Keep::kNothing, Keep::kAttentionOutput, Keep::kEverything}) {
      Case c{"empty", QkNorm::kHead, half};
      c.bounds = {0};
      with_layer(c, [&](Layer& layer) {
        const auto got = run(layer, keep);
        EXPECT_EQ(got.out.sizes(), (std::vector<int64_t>{0, layer.config.hidden_size}));
        for (const auto& [name, grad] : got.grads) EXPECT_TRUE(grad.eq(kBefore).all().item<bool>()) << name;
      });
    }
  }
}

}  // namespace
}  // namespace steppe::model
