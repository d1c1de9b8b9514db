// Boundaries and attention outputs in host memory: the same bits, and the bytes that the program says.
#include <ATen/ops/equal.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "steppe/base/error.h"
#include "steppe/base/live_threads.h"
#include "steppe/memory/scope.h"
#include "steppe/train/configure.h"
#include "tests/training/small_run.h"

namespace steppe::testing {
namespace {

using memory::Category;
using memory::Domain;
using offload::BoundaryPolicy;
using offload::OutputPlacement;

constexpr int64_t kLayers = 6;

SmallRun six_layers(layout::LayoutConfig layout = {}) {
  auto run = small_run(2, layout);
  run.model.num_hidden_layers = kLayers;
  return run;
}

int64_t tokens_of(const SmallRun& run) {
  return (run.seq_length * run.micro_batch_size + run.layout.ulysses_degree - 1) / run.layout.ulysses_degree;
}

int64_t boundary_bytes(const SmallRun& run) {
  return tokens_of(run) * run.model.hidden_size * static_cast<int64_t>(c10::elementSize(run.dtype));
}

// Room for `held` boundaries of the longest rank.
void keep_on_host(SmallRun& run, int64_t held, BoundaryPolicy policy = BoundaryPolicy::kSco) {
  run.step.offload.boundaries = policy;
  run.step.offload.boundary_host_bytes = held * memory::HostArena::aligned(boundary_bytes(run));
}

void keep_outputs(SmallRun& run, std::vector<OutputPlacement> placements) {
  const auto cost = offload::attention_output_cost(
      run.seq_length * run.micro_batch_size, run.model.num_attention_heads / run.layout.ulysses_degree,
      run.model.head_dim, static_cast<int64_t>(c10::elementSize(run.dtype)));
  const std::vector<offload::OutputCost> costs(kLayers, cost);
  run.step.offload.output_host_bytes = offload::host_bytes_of(placements, costs);
  run.step.offload.attention_outputs = std::move(placements);
}

std::vector<OutputPlacement> outputs_of(const char* letters) {
  std::vector<OutputPlacement> placements;
  for (; *letters != 0; ++letters) {
    placements.push_back(*letters == 'd'   ? OutputPlacement::kDevice
                         : *letters == 'h' ? OutputPlacement::kHost
                                           : OutputPlacement::kRecompute);
  }
  return placements;
}

// Micro-batches of different lengths, documents within.
std::vector<data::Microbatch> uneven_batch(const SmallRun& run, int64_t step, int64_t group) {
  std::vector<data::Microbatch> batch;
  for (const int64_t num_sequences : {1, 2}) {
    data::Microbatch micro_batch;
    for (int64_t s = 0; s < num_sequences; ++s) {
      const int64_t index = step * 16 + num_sequences * 4 + s * 2 + group;
      micro_batch.append(small_sequence(run, index), index);
    }
    batch.push_back(std::move(micro_batch));
  }
  return batch;
}

std::unique_ptr<ops::RoutingSource> balanced(const SmallRun& run) {
  return std::make_unique<ops::GivenRouting>(ops::balanced_routing(
      {run.model.num_experts, run.model.num_experts_per_tok, run.model.norm_topk_prob}));
}

struct Trained {
  std::vector<double> figures;  // losses and gradient norms
  std::vector<at::Tensor> weights;
  bool operator==(const Trained& other) const {
    return figures == other.figures && std::equal(weights.begin(), weights.end(), other.weights.begin(),
                                                  [](auto& a, auto& b) { return at::equal(a, b); });
  }
};

std::vector<Trained> train(const SmallRun& run) {
  std::vector<Trained> trained(run.layout.world_size);
  on_all_ranks(
      run, [] { return std::make_unique<ops::TopKRouting>(); },
      [&](Rank& rank) {
        auto& mine = trained[rank.layout.rank()];
        for (int64_t step = 0; step < 2; ++step) {
          const auto result = rank.step.train(uneven_batch(run, step, rank.group()), run.lr, step + 1);
          mine.figures.insert(mine.figures.end(), {result.loss, result.grad_norm});
        }
        for (auto& unit : rank.weights.units()) mine.weights.push_back(unit.working().clone());
        EXPECT_LE(memory::current_ledger().peak(Domain::kHost).bytes,
                  run.step.offload.boundary_host_bytes + run.step.offload.output_host_bytes);
      });
  return trained;
}

TEST(Offload, TrainsToTheSameBitsAtAnyBudget) {
  for (const layout::LayoutConfig& layout : {layout::LayoutConfig{}, {2, 2, 1, 2}, {2, 1, 2, 1}}) {
    auto run = six_layers(layout);
    run.micro_batch_size = 2;
    const auto expected = train(run);
    const auto budgets =
        layout.world_size == 1 ? std::vector<int64_t>{1, 3, 5, 6, 9} : std::vector<int64_t>{3};
    for (const int64_t held : budgets) {
      keep_on_host(run, held);
      EXPECT_TRUE(train(run) == expected) << "W=" << layout.world_size << ", " << held << " on the host";
    }
    keep_on_host(run, kLayers, BoundaryPolicy::kAll);
    EXPECT_TRUE(train(run) == expected) << "W=" << layout.world_size << ", all on the host";
  }
}

TEST(Offload, KeptAttentionOutputsTrainToTheSameBits) {
  for (const layout::LayoutConfig& layout : {layout::LayoutConfig{}, {2, 2, 1, 2}}) {
    auto run = six_layers(layout);
    run.micro_batch_size = 2;
    const auto expected = train(run);
    for (const char* placements : {"dddddd", "hhhhhh", "hh--dd"}) {
      keep_outputs(run, outputs_of(placements));
      EXPECT_TRUE(train(run) == expected) << "W=" << layout.world_size << ", " << placements;
    }
    keep_on_host(run, 4);
    EXPECT_TRUE(train(run) == expected) << "W=" << layout.world_size << ", boundaries too";
  }
}

struct StepTrace {
  memory::Timeline timeline;
  memory::Peak peak;
  memory::BytesByCategory before{};
  int64_t attention_flops = 0;

  // The most that a category, or (nothing given) the device, held in the phases that begin so.
  int64_t peak_in(std::string_view phase, std::optional<Category> category = {}) const {
    auto live = before;
    int64_t largest = 0;
    bool inside = false;
    for (const auto& event : timeline.events) {
      if (event.mark >= 0) inside = timeline.marks[event.mark].starts_with(phase);
      if (event.domain != Domain::kDevice) continue;
      live[static_cast<size_t>(event.category)] += event.bytes;
      if (!inside) continue;
      largest = std::max(largest, category ? live[static_cast<size_t>(*category)] : event.live_bytes);
    }
    return largest;
  }
  int64_t live_at(std::string_view mark, Category category) const {
    auto live = before;
    for (const auto& event : timeline.events) {
      if (event.mark >= 0 && timeline.marks[event.mark] == mark) break;
      live[static_cast<size_t>(event.category)] += event.bytes;
    }
    return live[static_cast<size_t>(category)];
  }
};

StepTrace trace_step(const SmallRun& run) {
  StepTrace trace;
  on_all_ranks(
      run, [&] { return balanced(run); },
      [&](Rank& rank) {
        auto& ledger = memory::current_ledger();
        trace.before = ledger.live_by_category();
        ledger.reset_peak();
        ledger.start_timeline();
        rank.step.train(small_batch(run, 0, rank.group()), run.lr, 1);
        trace.timeline = ledger.stop_timeline();
        trace.peak = ledger.peak();
        trace.attention_flops = rank.counters.flops[FlopKind::kAttention];
        EXPECT_EQ(ledger.live_by_category(), trace.before);
      });
  return trace;
}

// A line in the number of boundaries on the host, then a floor: the backward of a layer with the one at work
// and the one on its way.
TEST(Offload, ThePeakFollowsTheLineToItsFloorToTheByte) {
  auto run = six_layers();
  run.global_batch_size = 1;
  const int64_t one = boundary_bytes(run);
  const auto base = trace_step(run);
  ASSERT_EQ(base.peak.mark, "layer 5 backward");
  for (int64_t q = 1; q <= kLayers; ++q) {
    keep_on_host(run, q);
    const auto trace = trace_step(run);
    const int64_t saved = std::min(q, kLayers - 2) * one;
    EXPECT_EQ(trace.peak.bytes, base.peak.bytes - saved) << q;
    EXPECT_EQ(trace.peak.mark, "layer 5 backward");
    EXPECT_EQ(trace.peak.by_category[static_cast<size_t>(Category::kBoundary)], kLayers * one - saved);
  }
}

TEST(Offload, NeverMoreThanTwoRestoredBoundariesAreOnTheDevice) {
  auto run = six_layers();
  run.global_batch_size = 1;
  const int64_t one = boundary_bytes(run);
  for (int64_t q = 1; q <= kLayers; ++q) {
    keep_on_host(run, q);
    const auto trace = trace_step(run);
    for (int64_t layer = 0; layer < kLayers; ++layer) {
      const int64_t resident = std::max<int64_t>(0, layer + 1 - q);
      const int64_t restored = (layer < q ? 1 : 0) + (layer > 0 && layer - 1 < q ? 1 : 0);
      EXPECT_EQ(trace.peak_in(fmt::format("layer {} backward", layer), Category::kBoundary),
                (resident + restored) * one)
          << "layer " << layer << ", " << q << " on the host";
    }
    EXPECT_EQ(trace.live_at("vocabulary loss", Category::kBoundary), (kLayers - q) * one);
  }
}

TEST(Offload, KeptOutputsCostTheirBytesAndSaveTheirWork) {
  auto run = six_layers();
  run.global_batch_size = 1;
  const auto base = trace_step(run);
  const auto cost =
      offload::attention_output_cost(run.seq_length, run.model.num_attention_heads, run.model.head_dim, 4);
  EXPECT_EQ(base.peak_in("", Category::kSaved), 0);
  const std::pair<const char*, int64_t> cases[] = {{"dddddd", 6}, {"---ddd", 3}, {"hhhhhh", 2}};
  for (const auto& [placements, on_device] : cases) {
    keep_outputs(run, outputs_of(placements));
    const auto trace = trace_step(run);
    EXPECT_EQ(trace.peak_in("layer 5 backward", Category::kSaved), on_device * cost.device_bytes)
        << placements;
    // Forward 4 parts, recomputed 4, backward 10.
    const auto kept = kLayers - std::count(placements, placements + kLayers, '-');
    EXPECT_EQ(trace.attention_flops, base.attention_flops * (18 * kLayers - 4 * kept) / (18 * kLayers));
  }
}

struct Injected : std::runtime_error {
  using std::runtime_error::runtime_error;
};

SmallRun tiny_run() {
  auto run = six_layers();
  auto& m = run.model;
  m.hidden_size = 16, m.intermediate_size = 16, m.vocab_size = 29;
  m.num_attention_heads = 4, m.num_key_value_heads = 2, m.head_dim = 4;
  m.num_experts = 4, m.moe_intermediate_size = 8, m.shared_expert_intermediate_size = 8;
  run.seq_length = 20;
  return run;
}

// One or two micro-batches of random lengths.
std::vector<data::Microbatch> random_batch(const SmallRun& run, std::mt19937& random) {
  std::vector<data::Microbatch> batch(1 + random() % 2);
  for (auto& micro_batch : batch) {
    data::Sequence sequence;
    sequence.document_starts = {0};
    const auto length = static_cast<int32_t>(1 + random() % run.seq_length);
    for (int32_t i = 0; i < length; ++i) {
      sequence.tokens.push_back(static_cast<int32_t>(random() % run.model.vocab_size));
      sequence.positions.push_back(i);
      sequence.targets.push_back(static_cast<int32_t>(random() % run.model.vocab_size));
    }
    micro_batch.append(sequence, 0);
  }
  return batch;
}

// A step that is thrown out of at any phase leaves nothing behind, and the next one is as if it had not been.
TEST(Offload, AThousandInterruptedStepsLeaveNothingBehind) {
  std::mt19937 random(23);
  int interrupted = 0;
  for (int i = 0; i < 25; ++i) {
    auto run = tiny_run();
    keep_on_host(run, static_cast<int64_t>(random() % (kLayers + 1)));
    if (i % 3 != 0) run.state = {.placement = optim::Placement::kStream, .host_gradients = i % 3 == 2};
    if (i % 2 == 1) keep_outputs(run, outputs_of(i % 4 == 1 ? "hh-d-h" : "hhhhhh"));
    on_all_ranks(
        run, [&] { return balanced(run); },
        [&](Rank& rank) {
          auto& ledger = memory::current_ledger();
          const auto live = ledger.live_by_category();
          const auto host = ledger.live_bytes(Domain::kHost);
          const auto threads = num_live_threads();
          const auto batch = random_batch(run, random);
          const double expected = rank.step.accumulate(batch).loss;
          for (int attempt = 0; attempt < 40; ++attempt) {
            int left = static_cast<int>(random() % 40);  // phases; some beyond the last one
            rank.step.on_phase([&] {
              if (left-- == 0) throw Injected("on the way");
            });
            try {
              rank.step.accumulate(random_batch(run, random));
            } catch (const Injected&) {
              ++interrupted;
            }
            ASSERT_EQ(ledger.live_by_category(), live);
            ASSERT_EQ(ledger.live_bytes(Domain::kHost), host);
            ASSERT_EQ(num_live_threads(), threads);
          }
          rank.step.on_phase([] {});
          EXPECT_EQ(rank.step.accumulate(batch).loss, expected);
          EXPECT_EQ(ledger.live_by_category(), live);
        });
  }
  EXPECT_GT(interrupted, 300);
  EXPECT_LT(interrupted, 1000);
}

recipe::RunConfig small_recipe(const std::string& activations, int64_t host_budget) {
  recipe::RunConfig run;
  run.training.seq_length = 100;
  run.model.compute_dtype = "bfloat16";
  run.offload.activations = activations;
  run.offload.host_budget = host_budget;
  return run;
}

TEST(OffloadRecipe, TheRanksOfANodeShareTheBudget) {
  const auto model = small_model(2);  // 3 layers of width 48: 50 tokens are 4,800 B
  const layout::LayoutConfig layout{4, 2, 1, 1};
  auto run = small_recipe("sco", 40'000);
  const auto config = [&] { return train::offload_config(run, model, layout); };
  EXPECT_EQ(config().boundary_host_bytes, 9'984);  // of 10,000, in whole ranges
  EXPECT_EQ(config().description, "boundaries: 2 of 3 layers in host memory (9.75KiB a rank)");
  run.hardware.ranks_per_node = 2;
  EXPECT_EQ(config().boundary_host_bytes, 3 * 4'800);  // no more than they take
  run.hardware.ranks_per_node = 1;
  run.activation_checkpoint.mode = "selective";
  // 25,600 B are left: an output of 100 tokens and 6 of 12 heads takes 19,200 and 2,432.
  EXPECT_EQ(config().output_host_bytes, 21'632);
  EXPECT_EQ(config().attention_outputs, outputs_of("h--"));
  run.offload.activations = "none";
  EXPECT_EQ(config().attention_outputs, outputs_of("ddd"));
  EXPECT_EQ(config().output_host_bytes, 0);
}

TEST(OffloadRecipe, AllThatDoesNotFitIsAnError) {
  const auto run = small_recipe("all", 14'000);
  EXPECT_THROW(train::offload_config(run, small_model(2), {2, 2, 1, 1}), ValueError);
}

}  // namespace
}  // namespace steppe::testing
