// Training with masters, moments and gradients on the host is training with them on the device, bit for bit;
// only the bytes move.
#include <gtest/gtest.h>

#include "steppe/memory/scope.h"
#include "tests/training/small_run.h"

namespace steppe::testing {
namespace {

using memory::BytesByCategory, memory::Category, memory::Domain;
using optim::Placement;

constexpr int64_t kSteps = 3;

int64_t of(const BytesByCategory& bytes, Category category) {
  return bytes[static_cast<size_t>(category)];
}

std::unique_ptr<ops::RoutingSource> top_k() {
  return std::make_unique<ops::TopKRouting>();
}

// Everything a step leaves behind on one rank.
struct State {
  std::vector<double> losses, norms;
  std::vector<at::Tensor> tensors;  // of every unit: master, m, v, working
};

std::vector<State> trained(const SmallRun& run) {
  std::vector<State> states(run.layout.world_size);
  on_all_ranks(run, top_k, [&](Rank& rank) {
    auto& state = states[rank.layout.rank()];
    for (int64_t step = 0; step < kSteps; ++step) {
      const auto result = rank.step.train(small_batch(rank.run, step, rank.group()), run.lr, step + 1);
      state.losses.push_back(result.loss);
      state.norms.push_back(result.grad_norm);
    }
    rank.step.wait_for_optimizer_state();
    // The rank's ledger ends with the rank.
    memory::LedgerBinding outlives(memory::process_ledger());
    for (const auto& unit : rank.weights.units()) {
      const auto& shard = unit.shard();
      for (const auto& run : optim::state_runs(shard.segments)) {
        state.tensors.push_back(run.weights(shard).clone());
      }
      for (const auto& tensor : {shard.m, shard.v, unit.working()}) state.tensors.push_back(tensor.clone());
    }
  });
  return states;
}

void expect_same_bits(const std::vector<State>& a, const std::vector<State>& b) {
  for (size_t rank = 0; rank < a.size(); ++rank) {
    EXPECT_EQ(a[rank].losses, b[rank].losses);
    EXPECT_EQ(a[rank].norms, b[rank].norms);
    ASSERT_EQ(a[rank].tensors.size(), b[rank].tensors.size());
    for (size_t i = 0; i < a[rank].tensors.size(); ++i) {
      EXPECT_TRUE(at::equal(a[rank].tensors[i], b[rank].tensors[i])) << "rank " << rank << " tensor " << i;
    }
  }
}

struct PlacementCase {
  Placement placement;
  bool host_gradients;
  optim::BucketConfig buckets;
};

// Buckets of everything, and of sizes that no unit is a multiple of.
const std::vector<PlacementCase> kCases = {
    {Placement::kCpu, false, {}},          {Placement::kCpu, true, {5003, 3}},
    {Placement::kCpu, false, {1999, 1}},   {Placement::kStream, false, {5003, 2}},
    {Placement::kStream, true, {1999, 3}}, {Placement::kStream, true, {}}};
const std::vector<PlacementCase> kFewCases = {kCases[1], kCases[2], kCases[4]};

void expect_every_placement_trains_alike(SmallRun run, const std::vector<PlacementCase>& cases = kCases) {
  run.step.max_grad_norm = 0.5;  // clips
  const auto resident = trained(run);
  EXPECT_GT(resident[0].norms[0], run.step.max_grad_norm);
  for (const auto& c : cases) {
    SCOPED_TRACE(::testing::Message() << "placement " << static_cast<int>(c.placement) << " host gradients "
                                      << c.host_gradients << " bucket " << c.buckets.bucket_params);
    auto other = run;
    other.state.placement = c.placement;
    other.state.host_gradients = c.host_gradients;
    other.step.buckets = c.buckets;
    expect_same_bits(trained(other), resident);
  }
}

TEST(OptimizerPlacement, OneRank) {
  expect_every_placement_trains_alike(small_run(2, {}));
}

TEST(OptimizerPlacement, Bfloat16OnOneRankWithTiedEmbeddings) {
  auto run = small_run(2, {});
  run.dtype = at::kBFloat16;
  run.model.tie_word_embeddings = true;
  expect_every_placement_trains_alike(run);
}

// Experts replicated, then not; dense units cut in two; vocabulary of 51 and 50 rows.
TEST(OptimizerPlacement, TwoRanksWithReplicas) {
  expect_every_placement_trains_alike(small_run(2, {2, 1, 1, 2}), kFewCases);
}

TEST(OptimizerPlacement, TwoRanksWithoutReplicas) {
  auto run = small_run(2, {2, 2, 2, 1});
  run.dtype = at::kBFloat16;
  run.model.tie_word_embeddings = true;
  expect_every_placement_trains_alike(run, kFewCases);
}

// Several micro-batches, one or two visits of the embedding in each.
TEST(OptimizerPlacement, Bfloat16Gradients) {
  for (const bool tied : {false, true}) {
    auto run = small_run(2, {});
    run.dtype = run.state.gradient_dtype = at::kBFloat16;
    run.model.tie_word_embeddings = tied;
    run.global_batch_size = 3;
    expect_every_placement_trains_alike(run, kFewCases);
  }
}

TEST(OptimizerPlacement, Bfloat16GradientsOverTwoRanks) {
  for (const layout::LayoutConfig& layout : {layout::LayoutConfig{2, 1, 1, 1}, {2, 2, 2, 2}}) {
    auto run = small_run(2, layout);
    run.dtype = run.state.gradient_dtype = at::kBFloat16;
    run.state.rules.freeze = {"model.layers.1.self_attn.*"};
    expect_every_placement_trains_alike(run, kFewCases);
  }
}

TEST(OptimizerPlacement, FrozenParametersAndGroups) {
  auto run = small_run(2, {2, 1, 2, 1});
  run.state.rules = {
      .lr = run.lr,
      .freeze = {"model.embed_tokens.weight", "model.layers.1.self_attn.*", "*experts.7.up_proj*"},
      .groups = {{{"*norm.weight"}, run.lr / 8, 0.0}, {{"*.mlp.gate.weight"}, {}, 0.25}}};
  const auto plain = trained(small_run(2, {2, 1, 2, 1}));
  for (const auto dtype : {at::kBFloat16, at::kFloat}) {
    run.dtype = dtype;
    expect_every_placement_trains_alike(run, kFewCases);
  }
  EXPECT_NE(trained(run)[0].losses, plain[0].losses);
}

TEST(OptimizerPlacement, FrozenWeightsAreThoseOfTheBeginning) {
  for (const auto placement : {Placement::kResident, Placement::kStream}) {
    auto run = small_run(2, {});
    run.dtype = at::kBFloat16;
    run.state.placement = placement;
    run.state.rules.freeze = {"*.mlp.experts.*"};
    on_all_ranks(run, top_k, [](Rank& rank) {
      std::vector<at::Tensor> before;
      for (const auto& unit : rank.weights.units()) before.push_back(unit.working().clone());
      rank.step.train(small_batch(rank.run, 0, rank.group()), rank.run.lr, 1);
      for (size_t u = 0; u < before.size(); ++u) {
        const auto& unit = rank.weights.units()[u];
        EXPECT_EQ(at::equal(unit.working(), before[u]), unit.name().ends_with("experts") || unit.numel() == 0)
            << unit.name();
      }
    });
  }
}

// Neither masters nor moments: as many bytes less as are frozen, wherever the state lives.
TEST(OptimizerPlacement, FrozenParametersHaveNoState) {
  for (const auto placement : {Placement::kResident, Placement::kCpu, Placement::kStream}) {
    auto run = small_run(2, {2, 1, 2, 1});
    run.dtype = at::kBFloat16;
    run.state.placement = placement;
    const auto state_bytes = [&] {
      std::vector<int64_t> bytes(2);
      on_all_ranks(run, top_k, [&](Rank& rank) {
        const auto domain = placement == Placement::kResident ? Domain::kDevice : Domain::kHost;
        bytes[rank.layout.rank()] =
            of(memory::current_ledger().live_by_category(domain), Category::kOptimizer);
      });
      return bytes[0] + bytes[1];
    };
    const int64_t all = state_bytes();
    run.state.rules.freeze = {"model.embed_tokens.weight", "*.self_attn.q_proj.weight", "*experts.7.*"};
    const auto& m = run.model;
    const int64_t frozen = m.hidden_size * (m.vocab_size + 3 * m.num_attention_heads * m.head_dim +
                                            2 * 3 * m.moe_intermediate_size);
    // Ranges of host memory end at multiples of 64 bytes, and so do units.
    EXPECT_NEAR(static_cast<double>(all - state_bytes()), static_cast<double>(12 * frozen), 12 * 64 * 4);
  }
}

// (2 + g)·Θ on the device, g = 4, 2 or 0, and the rest on the host.
TEST(OptimizerPlacement, PersistentBytesMoveToTheHost) {
  for (const auto& [dtype, gradient] :
       {std::pair{at::kFloat, at::kFloat}, {at::kBFloat16, at::kFloat}, {at::kBFloat16, at::kBFloat16}}) {
    for (const layout::LayoutConfig& layout : {layout::LayoutConfig{1, 1, 1, 1}, {2, 2, 2, 1}}) {
      for (const auto& c : kCases) {
        auto run = small_run(2, layout);
        run.dtype = dtype, run.state.gradient_dtype = gradient;
        run.state.placement = c.placement;
        run.state.host_gradients = c.host_gradients;
        run.state.moments_dtype = c.buckets.slots == 3 ? at::kBFloat16 : at::kFloat;
        run.step.buckets = c.buckets;
        on_all_ranks(run, top_k, [&](Rank& rank) {
          auto& ledger = memory::current_ledger();
          int64_t weights = 0, shards = 0, grads = 0;
          for (const auto& unit : rank.weights.units()) {
            weights += unit.working().numel() * rank.context.itemsize();
            shards += unit.shard_numel();
            grads += run.state.gradient_itemsize() * unit.grad_numel();
          }
          for (const auto& bias : rank.weights.expert_biases()) weights += bias.defined() ? bias.nbytes() : 0;
          const bool masters = !(run.dtype == at::kFloat && c.placement == Placement::kStream);
          const int64_t moment = run.state.moments_dtype == at::kFloat ? 4 : 2;
          const auto aligned = memory::HostArena::aligned;

          const auto device = ledger.live_by_category();
          const auto host = ledger.live_by_category(Domain::kHost);
          EXPECT_EQ(of(device, Category::kWeights), weights);
          EXPECT_EQ(of(device, Category::kOptimizer), 0);
          EXPECT_EQ(of(device, Category::kGrads), c.host_gradients ? 0 : grads);
          EXPECT_EQ(ledger.live_bytes(), weights + (c.host_gradients ? 0 : grads));
          EXPECT_EQ(of(host, Category::kOptimizer),
                    2 * aligned(shards * moment) + (masters ? aligned(shards * 4) : 0));
          EXPECT_EQ(of(host, Category::kGrads), c.host_gradients ? aligned(grads) : 0);

          ledger.reset_peak();
          rank.step.train(small_batch(rank.run, 0, rank.group()), rank.run.lr, 1);
          EXPECT_EQ(ledger.live_by_category(), device);
          EXPECT_EQ(ledger.live_by_category(Domain::kHost), host);
          EXPECT_EQ(ledger.peak(Domain::kHost).bytes, ledger.live_bytes(Domain::kHost));
        });
      }
    }
  }
}

// Accumulators that are added to again are on their way back while the layer above works, and those that were
// given back leave while the one below does: what is on the device as a layer's backward begins.
TEST(OptimizerPlacement, HostGradientsComeBackALayerAhead) {
  for (const auto& layout : {layout::LayoutConfig{}, {2, 2, 1, 2}}) {
    auto run = small_run(2, layout);
    run.model.num_hidden_layers = 4;
    run.global_batch_size = 2 * layout.world_size / layout.ulysses_degree;  // two micro-batches
    run.state.placement = Placement::kStream;
    run.state.host_gradients = true;
    on_all_ranks(run, top_k, [&](Rank& rank) {
      const auto bytes = [](const model::WeightUnit& unit) { return 4 * unit.grad_numel(); };
      const auto dense = [&](int64_t layer) { return bytes(rank.weights.dense(layer)); };
      const auto experts = [&](int64_t layer) { return bytes(rank.weights.experts(layer)); };
      const auto& ledger = memory::current_ledger();
      const auto& brought = rank.counters.link_bytes[LinkDirection::kHostToDevice];
      const int phases = 2 * 4 + 3;  // of a micro-batch: embedding, layers, loss, layers, embedding
      const int layer_1_backward = 1 + 4 + 1 + 2;
      int phase = 0;
      std::vector<int64_t> live, arrived;
      rank.step.on_phase([&] {
        if (phase % phases == layer_1_backward && phase < 2 * phases) {
          live.push_back(of(ledger.live_by_category(), Category::kGrads));
          arrived.push_back(brought[LinkPurpose::kGradients]);
        }
        ++phase;
      });
      rank.step.accumulate(small_batch(rank.run, 0, rank.group()));
      // Layer 2's dense unit is being summed; layer 2's experts and layer 3's dense unit leave.
      const int64_t summed = dense(2) * (layout.world_size == 1 ? 1 : 1 + layout.world_size);
      const int64_t both = summed + experts(2) + dense(3);
      ASSERT_EQ(live.size(), 2u);
      EXPECT_EQ(live[0], both);
      EXPECT_EQ(live[1], both + dense(1) + experts(1));
      int64_t down_to_layer_1 = bytes(rank.weights.head()) + bytes(rank.weights.final_norm());
      for (int64_t layer = 1; layer < 4; ++layer) down_to_layer_1 += dense(layer) + experts(layer);
      EXPECT_EQ(arrived[0], 0);
      EXPECT_EQ(arrived[1], down_to_layer_1);
    });
  }
}

// State that one placement left is state that any other goes on from.
TEST(OptimizerPlacement, StateMovesBetweenPlacements) {
  auto run = small_run(2, {});
  run.dtype = at::kBFloat16;
  const auto batch_of = [&](int64_t step) { return small_batch(run, step, 0); };
  on_all_ranks(run, top_k, [&](Rank& resident) {
    for (int64_t step = 0; step < 2; ++step) resident.step.train(batch_of(step), run.lr, step + 1);
    std::vector<std::vector<at::Tensor>> saved;
    for (const auto& unit : resident.weights.units()) {
      const auto& shard = unit.shard();
      saved.push_back({shard.master.clone(), shard.m.clone(), shard.v.clone(), unit.working().clone()});
    }
    const double expected =
        (resident.step.train(batch_of(2), run.lr, 3), resident.step.train(batch_of(3), run.lr, 4)).loss;
    for (const auto placement : {Placement::kCpu, Placement::kStream}) {
      auto other = run;
      other.state.placement = placement;
      other.step.buckets = {3001, 2};
      on_all_ranks(other, top_k, [&](Rank& rank) {
        for (size_t u = 0; u < saved.size(); ++u) {
          auto& unit = rank.weights.units()[u];
          unit.shard().master.copy_(saved[u][0]);
          unit.shard().m.copy_(saved[u][1]);
          unit.shard().v.copy_(saved[u][2]);
          unit.working().copy_(saved[u][3]);
        }
        rank.step.train(batch_of(2), run.lr, 3);
        EXPECT_EQ(rank.step.train(batch_of(3), run.lr, 4).loss, expected);
      });
    }
  });
}

}  // namespace
}  // namespace steppe::testing
