// What a step holds in each of its phases, and which of them makes the peak.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "steppe/memory/scope.h"
#include "tests/training/small_run.h"

namespace steppe::testing {
namespace {

using memory::BytesByCategory;
using memory::Category;

int64_t of(const BytesByCategory& bytes, Category category) {
  return bytes[static_cast<size_t>(category)];
}

// A step's timeline, on top of what was live before it.
struct StepTimeline {
  BytesByCategory before{};
  memory::Timeline timeline;
  memory::Peak peak;

  BytesByCategory live_at(std::string_view mark) const {
    auto live = before;
    for (const auto& event : timeline.events) {
      if (event.mark >= 0 && timeline.marks[event.mark] == mark) return live;
      live[static_cast<size_t>(event.category)] += event.bytes;
    }
    ADD_FAILURE() << "no mark " << mark;
    return live;
  }
};

StepTimeline record_step(Rank& rank) {
  auto& ledger = memory::current_ledger();
  StepTimeline recorded{ledger.live_by_category(), {}, {}};
  ledger.reset_peak();
  ledger.start_timeline();
  rank.step.train(small_batch(rank.run, 0, rank.group()), rank.run.lr, 1);
  recorded.timeline = ledger.stop_timeline();
  recorded.peak = ledger.peak();
  return recorded;
}

std::unique_ptr<ops::RoutingSource> balanced(const SmallRun& run) {
  return std::make_unique<ops::GivenRouting>(ops::balanced_routing(
      {run.model.num_experts, run.model.num_experts_per_tok, run.model.norm_topk_prob}));
}

// Every rank's step of one micro-batch.
std::vector<StepTimeline> record_ranks(SmallRun run) {
  run.global_batch_size = run.layout.world_size / run.layout.ulysses_degree;
  std::vector<StepTimeline> recorded(run.layout.world_size);
  on_all_ranks(
      run, [&] { return balanced(run); },
      [&](Rank& rank) { recorded[rank.layout.rank()] = record_step(rank); });
  return recorded;
}

constexpr Category kInsideLayers[] = {Category::kGathered, Category::kSaved,   Category::kAttention,
                                      Category::kDispatch, Category::kExpert,  Category::kFfn,
                                      Category::kVocab,    Category::kStaging, Category::kUntagged};

TEST(StepPhases, FullRecomputationKeepsBoundariesAndRoutingOnly) {
  for (const layout::LayoutConfig& layout : {layout::LayoutConfig{1, 1, 1, 1}, {3, 1, 3, 1}, {4, 2, 4, 2}}) {
    auto run = small_run(layout.world_size == 3 ? 1 : 2, layout);
    const auto ranks = record_ranks(run);
    const auto& c = run.model;
    for (int rank = 0; rank < layout.world_size; ++rank) {
      SCOPED_TRACE(::testing::Message() << "rank " << rank << " of " << layout.world_size);
      const auto live = ranks[rank].live_at("vocabulary loss");
      const int64_t n =
          layout::even_part(run.seq_length, layout.ulysses_degree, rank % layout.ulysses_degree).size();
      const int64_t num_moe_layers = c.num_hidden_layers - c.first_k_dense_replace;
      EXPECT_EQ(of(live, Category::kBoundary), c.num_hidden_layers * n * c.hidden_size * 4);
      EXPECT_EQ(of(live, Category::kResidual), n * c.hidden_size * 4);
      EXPECT_EQ(of(live, Category::kRouting), num_moe_layers * n * c.num_experts_per_tok * 8);
      for (const auto category : kInsideLayers)
        EXPECT_EQ(of(live, category), 0) << memory::category_name(category);
    }
  }
}

// Bytes that one rank keeps of its layers when nothing is recomputed, beside boundaries and routing.
int64_t bytes_of_everything(const SmallRun& run) {
  const auto& c = run.model;
  const int64_t n = run.seq_length, h = c.hidden_size, k = c.num_experts_per_tok;
  const int64_t q = c.num_attention_heads * c.head_dim, kv = c.num_key_value_heads * c.head_dim;
  // Normalized input, queries and keys before and after QK-norm, values, outputs; one fp32 a row that was
  // normalized, and a log-sum-exp a head.
  const int64_t attention = n * (h + 2 * q + 2 * kv + kv + q) +
                            n * (1 + c.num_attention_heads + c.num_key_value_heads) +
                            n * c.num_attention_heads;
  const int64_t middle = n * (2 * h + 1);
  const int64_t dense = n * 2 * c.intermediate_size;
  const int64_t experts = n * c.num_experts + n * 2 * c.shared_expert_intermediate_size +
                          n * k * (h + 2 * c.moe_intermediate_size + 1 + 2);
  const int64_t num_dense = c.first_k_dense_replace, num_moe = c.num_hidden_layers - num_dense;
  return 4 * (c.num_hidden_layers * (attention + middle) + num_dense * dense + num_moe * experts);
}

TEST(StepPhases, NoRecomputationKeepsEverything) {
  auto run = small_run(2, {});
  const auto full = record_ranks(run)[0];
  run.step.recompute = train::Recompute::kNone;
  const auto none = record_ranks(run)[0];
  const auto total = [](const BytesByCategory& live) {
    return std::accumulate(live.begin(), live.end(), int64_t{0});
  };
  EXPECT_EQ(total(none.live_at("vocabulary loss")) - total(full.live_at("vocabulary loss")),
            bytes_of_everything(run));
  EXPECT_LT(full.peak.bytes, none.peak.bytes);
}

// The mark under which the timeline is highest, and that height.
std::pair<std::string, int64_t> highest(const memory::Timeline& timeline) {
  std::pair<std::string, int64_t> result;
  std::string mark;
  for (const auto& event : timeline.events) {
    if (event.mark >= 0) mark = timeline.marks[event.mark];
    if (event.live_bytes > result.second) result = {mark, event.live_bytes};
  }
  return result;
}

void expect_peak_in(const SmallRun& run, const std::string& phase, Category largest_of_phase) {
  for (const auto& recorded : record_ranks(run)) {
    EXPECT_EQ(recorded.peak.mark, phase);
    EXPECT_EQ(std::pair(recorded.peak.mark, recorded.peak.bytes), highest(recorded.timeline));
    const auto& peak = recorded.peak.by_category;
    for (int category = 0; category < memory::kNumCategories; ++category) {
      const int64_t transient = peak[category] - recorded.before[category];
      EXPECT_LE(transient, of(peak, largest_of_phase) - of(recorded.before, largest_of_phase))
          << memory::category_name(static_cast<Category>(category));
    }
  }
}

TEST(StepPhases, ThePeakNamesItsPhase) {
  auto run = small_run(2, {});
  run.model.vocab_size = 4000;
  expect_peak_in(run, "vocabulary loss", Category::kVocab);

  run = small_run(2, {});
  run.model.moe_intermediate_size = 512;
  expect_peak_in(run, "layer 2 backward", Category::kExpert);

  run = small_run(2, {});
  run.model.intermediate_size = 2048;
  expect_peak_in(run, "layer 0 backward", Category::kFfn);

  // Weights that dwarf fifty tokens: their gradients' sum over two replicas is the peak.
  run = small_run(2, {2, 1, 1, 1});
  run.seq_length = 50;
  run.model.num_experts_per_tok = 1;
  run.model.moe_intermediate_size = 256;
  run.model.num_experts = 48;
  expect_peak_in(run, "gradients over replicas", Category::kStaging);
}

}  // namespace
}  // namespace steppe::testing
