// The dry run is the run: a whole training step on `meta`, over groups that only shape their results,
// allocates what the same step on the CPU does: the same bytes, for the same purpose, in the same order.
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "steppe/comm/rank_threads.h"
#include "steppe/memory/scope.h"
#include "tests/training/small_run.h"

namespace steppe::testing {
namespace {

constexpr int kSteps = 2;
constexpr int64_t kScalarBytes = 64;  // smaller tensors are scalars, which ATen makes on the CPU as it likes

// One rank's account of its steps.
struct Trace {
  std::vector<std::string> lines;  // "+4096 device expert", and the marks between
  memory::BytesByCategory persistent{};
  memory::Peak peak;
  Counters counters;
};

std::vector<std::string> lines_of(const memory::Timeline& timeline) {
  std::vector<std::string> lines;
  for (const auto& event : timeline.events) {
    if (event.mark >= 0) {
      lines.push_back(fmt::format("-- {}", timeline.marks[event.mark]));
    } else if (std::abs(event.bytes) >= kScalarBytes) {
      lines.push_back(fmt::format("{:+} {} {}", event.bytes, memory::domain_name(event.domain),
                                  memory::category_name(event.category)));
    }
  }
  return lines;
}

Trace trace_steps(Rank& rank, const std::function<std::vector<data::Microbatch>(int64_t step)>& batch_of) {
  auto& ledger = memory::current_ledger();
  Trace trace;
  trace.persistent = ledger.live_by_category();
  ledger.reset_peak();
  ledger.start_timeline();
  for (int64_t step = 0; step < kSteps; ++step) {
    const auto batch = batch_of(step);
    auto result = rank.step.accumulate(batch);
    rank.step.update(result, rank.run.lr, step + 1);
  }
  trace.lines = lines_of(ledger.stop_timeline());
  trace.peak = ledger.peak();
  trace.counters = rank.counters;
  return trace;
}

// A run whose ranks all hold alike: what the shape-only communicator supposes of the others.
struct DryCase {
  SmallRun run;
  ops::GivenRouting routing;
  int num_threads = 1;  // of a rank

  std::unique_ptr<ops::RoutingSource> source() const { return std::make_unique<ops::GivenRouting>(routing); }

  std::vector<data::Microbatch> batch(int64_t step, int64_t group) const {
    auto batch = small_batch(run, step, group);
    const int64_t degree = run.layout.vocab_degree, rows = run.model.vocab_size / degree;
    if (run.layout.world_size == 1) return batch;
    // Every rank's shard asks each owner of the embedding for equally many rows, and has equally many
    // targets.
    for (auto& micro_batch : batch) {
      micro_batch.num_targets = 0;
      for (int64_t i = 0; i < micro_batch.num_tokens(); ++i) {
        auto& token = micro_batch.tokens[i];
        token = static_cast<int32_t>(i % degree * rows + token % rows);
        const bool ignored = i % 8 == 7;
        micro_batch.targets[i] = ignored ? data::kIgnoredTarget : token;
        micro_batch.num_targets += ignored ? 0 : 1;
      }
    }
    return batch;
  }
};

// Uneven in everything: fit for one rank.
DryCase uneven_case() {
  auto run = small_run(2, {});
  run.step.bias_update_rate = 1e-3;
  run.model.num_experts = 20;  // biases of 80 bytes
  const ops::RouterConfig router{run.model.num_experts, run.model.num_experts_per_tok, true};
  return {run,
          {[](int64_t layer, int64_t token, std::span<int32_t> experts) {
             // Experts from 16 on get nothing; one of them gets half of everything.
             for (size_t j = 0; j < experts.size(); ++j) {
               experts[j] = j == 0 ? 5 : static_cast<int32_t>((token * token + layer) % 16);
             }
           },
           router}};
}

// The same counts on every rank: each shard is a whole number of the routing's period.
DryCase symmetric_case(const layout::LayoutConfig& layout) {
  auto run = small_run(2, layout);
  run.model.num_experts = 16;
  run.model.vocab_size = 96;
  run.seq_length = 64;
  run.global_batch_size = 4 / layout.ulysses_degree;
  run.step.bias_update_rate = 1e-3;
  const ops::RouterConfig router{run.model.num_experts, run.model.num_experts_per_tok, true};
  return {run,
          {[](int64_t layer, int64_t token, std::span<int32_t> experts) {
             // Squares modulo 16 leave most experts without a token in j = 0.
             for (size_t j = 0; j < experts.size(); ++j) {
               experts[j] = static_cast<int32_t>((j == 0 ? token * token : token + layer) % 16);
             }
           },
           router}};
}

std::vector<Trace> trace_real(const DryCase& dry) {
  std::vector<Trace> traces(dry.run.layout.world_size);
  on_all_ranks(
      dry.run, [&] { return dry.source(); },
      [&](Rank& rank) {
        at::set_num_threads(dry.num_threads);
        traces[rank.layout.rank()] =
            trace_steps(rank, [&](int64_t step) { return dry.batch(step, rank.group()); });
      });
  return traces;
}

Trace trace_dry(const DryCase& dry, int rank_index) {
  Trace trace;
  comm::run_ranks(1, [&](int, const c10::intrusive_ptr<c10d::Store>&) {
    at::set_num_threads(dry.num_threads);
    const layout::RankLayout layout(dry.run.layout, rank_index);
    const auto source = dry.source();
    Rank rank(dry.run, rank_index, comm::make_shape_only_groups(layout), at::kMeta, *source);
    trace = trace_steps(rank, [&](int64_t step) { return dry.batch(step, rank.group()); });
  });
  return trace;
}

// The first line where the two part, with what came before.
std::string first_difference(const Trace& real, const Trace& dry) {
  const auto [at_real, at_dry] =
      std::mismatch(real.lines.begin(), real.lines.end(), dry.lines.begin(), dry.lines.end());
  const auto line = at_real - real.lines.begin();
  const auto context = [&](const std::vector<std::string>& lines) {
    std::string text;
    for (auto i = std::max<int64_t>(0, line - 6); i < std::min<int64_t>(line + 6, lines.size()); ++i) {
      text += fmt::format("{} {}\n", i == line ? ">" : " ", lines[i]);
    }
    return text;
  };
  return fmt::format("line {} of {} and {}\nreal:\n{}dry:\n{}", line, real.lines.size(), dry.lines.size(),
                     context(real.lines), context(dry.lines));
}

void expect_same(const Trace& real, const Trace& dry) {
  EXPECT_EQ(real.persistent, dry.persistent);
  EXPECT_GT(real.lines.size(), 300u);
  EXPECT_TRUE(real.lines == dry.lines) << first_difference(real, dry);
  EXPECT_EQ(real.peak.bytes, dry.peak.bytes);
  EXPECT_EQ(real.peak.by_category, dry.peak.by_category);
  EXPECT_EQ(real.peak.mark, dry.peak.mark);
  EXPECT_TRUE(real.counters == dry.counters);
}

void expect_dry_run_is_the_run(const DryCase& dry) {
  const auto real = trace_real(dry);
  for (int rank = 0; rank < dry.run.layout.world_size; ++rank) {
    SCOPED_TRACE(::testing::Message() << "rank " << rank);
    expect_same(real[rank], trace_dry(dry, rank));
  }
}

TEST(DryStep, OneRank) {
  expect_dry_run_is_the_run(uneven_case());
}

TEST(DryStep, OneRankKeepsEverything) {
  auto dry = uneven_case();
  dry.run.step.recompute = train::Recompute::kNone;
  expect_dry_run_is_the_run(dry);
}

TEST(DryStep, MicroBatches) {
  for (const int64_t size : {2, 4}) {
    auto dry = uneven_case();
    dry.run.micro_batch_size = size;
    expect_dry_run_is_the_run(dry);
  }
}

TEST(DryStep, StateOnTheHost) {
  for (const auto placement : {optim::Placement::kCpu, optim::Placement::kStream}) {
    for (const bool host_gradients : {false, true}) {
      auto dry = uneven_case();
      dry.run.state.placement = placement;
      dry.run.state.host_gradients = host_gradients;
      dry.run.step.buckets = {5003, 2};
      expect_dry_run_is_the_run(dry);
      auto ranks = symmetric_case({2, 1, 1, 2});
      ranks.run.state = dry.run.state;
      ranks.run.step.buckets = dry.run.step.buckets;
      expect_dry_run_is_the_run(ranks);
    }
  }
}

TEST(DryStep, Threads) {
  for (const int num_threads : {2, 3}) {
    auto dry = uneven_case();
    dry.run.global_batch_size = 1;
    dry.num_threads = num_threads;
    expect_dry_run_is_the_run(dry);
  }
}

TEST(DryStep, HostMemory) {
  using enum offload::OutputPlacement;
  for (const int64_t boundary_bytes : {int64_t{30'000}, int64_t{1} << 20}) {
    auto dry = uneven_case();
    auto& offload = dry.run.step.offload;
    offload.boundaries = offload::BoundaryPolicy::kSco;
    offload.boundary_host_bytes = boundary_bytes;
    offload.attention_outputs = {kHost, kDevice, kHost};
    offload.output_host_bytes = 1 << 20;
    expect_dry_run_is_the_run(dry);
  }
}

// oneDNN's bf16 products, where the CPU has them, take scratch of their own while they run.
class WithoutOneDnn {
 public:
  WithoutOneDnn() : before_(at::globalContext().userEnabledMkldnn()) {
    at::globalContext().setUserEnabledMkldnn(false);
  }
  ~WithoutOneDnn() { at::globalContext().setUserEnabledMkldnn(before_); }

 private:
  bool before_;
};

DryCase bfloat16_case(train::Recompute recompute) {
  auto dry = uneven_case();
  dry.run.dtype = at::kBFloat16;
  dry.run.global_batch_size = 2;
  dry.run.step.recompute = recompute;
  return dry;
}

TEST(DryStep, Bfloat16) {
  const WithoutOneDnn without;
  for (const auto recompute : {train::Recompute::kFull, train::Recompute::kNone}) {
    expect_dry_run_is_the_run(bfloat16_case(recompute));
  }
}

TEST(DryStep, Bfloat16OverTwoRanks) {
  const WithoutOneDnn without;
  auto dry = symmetric_case({2, 2, 2, 2});
  dry.run.dtype = at::kBFloat16;
  dry.run.global_batch_size = 2;
  expect_dry_run_is_the_run(dry);
}

TEST(DryStep, Bfloat16Gradients) {
  const WithoutOneDnn without;
  for (const auto placement : {optim::Placement::kResident, optim::Placement::kStream}) {
    for (const bool tied : {false, true}) {
      for (const layout::LayoutConfig& layout : {layout::LayoutConfig{}, {2, 1, 1, 2}, {2, 2, 2, 1}}) {
        SCOPED_TRACE(::testing::Message() << "placement " << static_cast<int>(placement) << " tied " << tied
                                          << " ranks " << layout.world_size);
        auto dry = layout.world_size == 1 ? uneven_case() : symmetric_case(layout);
        dry.run.dtype = dry.run.state.gradient_dtype = at::kBFloat16;
        dry.run.state.placement = placement;
        dry.run.state.host_gradients = placement != optim::Placement::kResident;
        dry.run.step.buckets = {5003, 2};
        dry.run.model.tie_word_embeddings = tied;
        dry.run.global_batch_size = 2 * layout.world_size / layout.ulysses_degree;
        expect_dry_run_is_the_run(dry);
      }
    }
  }
}

TEST(DryStep, Bfloat16WithOneDnnAllocatesNoLess) {
  const auto dry = bfloat16_case(train::Recompute::kFull);
  const auto real = trace_real(dry)[0].lines, expected = trace_dry(dry, 0).lines;
  size_t found = 0;
  for (size_t i = 0; i < real.size() && found < expected.size(); ++i) found += real[i] == expected[found];
  EXPECT_EQ(found, expected.size()) << "not found: " << expected[std::min(found, expected.size() - 1)];
}

TEST(DryStep, Models) {
  const std::vector<std::pair<const char*, std::function<void(SmallRun&)>>> changes = {
      {"no dense layer", [](SmallRun& run) { run.model.first_k_dense_replace = 0; }},
      {"all layers dense",
       [](SmallRun& run) { run.model.first_k_dense_replace = run.model.num_hidden_layers; }},
      {"no shared expert", [](SmallRun& run) { run.model.shared_expert_intermediate_size = 0; }},
      {"tied embeddings", [](SmallRun& run) { run.model.tie_word_embeddings = true; }},
      {"no QK-norm", [](SmallRun& run) { run.model.qk_norm = model::QkNorm::kNone; }},
      {"QK-norm of the whole width", [](SmallRun& run) { run.model.qk_norm = model::QkNorm::kFull; }},
      {"one key-value head", [](SmallRun& run) { run.model.num_key_value_heads = 1; }},
      {"as many key-value heads as heads", [](SmallRun& run) { run.model.num_key_value_heads = 12; }},
      {"expert tiles", [](SmallRun& run) { run.step.dispatch.tile_rows = 16; }},
      {"full logits", [](SmallRun& run) { run.step.loss = ops::VocabLossKind::kFull; }},
      {"no balancing", [](SmallRun& run) { run.step.bias_update_rate = 0; }},
  };
  for (const auto& [what, change] : changes) {
    for (const auto recompute : {train::Recompute::kFull, train::Recompute::kNone}) {
      SCOPED_TRACE(::testing::Message() << what << ", recompute " << static_cast<int>(recompute));
      auto dry = uneven_case();
      dry.run.global_batch_size = 2;
      dry.run.step.recompute = recompute;
      change(dry.run);
      expect_dry_run_is_the_run(dry);
    }
  }
}

std::string describe(const layout::LayoutConfig& layout) {
  return fmt::format("W={} D={} E_p={} P={}", layout.world_size, layout.ulysses_degree, layout.expert_degree,
                     layout.vocab_degree);
}

class DryLayouts : public ::testing::TestWithParam<int> {};

TEST_P(DryLayouts, EveryRankOfEveryLayout) {
  const int world_size = GetParam();
  for (int d = 1; d <= world_size; d *= 2) {
    for (int expert = 1; expert <= world_size; expert *= 2) {
      for (int vocab = 1; vocab <= world_size; vocab *= 2) {
        const layout::LayoutConfig layout{world_size, d, expert, vocab};
        SCOPED_TRACE(describe(layout));
        expect_dry_run_is_the_run(symmetric_case(layout));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(WorldSizes, DryLayouts, ::testing::Values(2, 4));

TEST(DryStep, ManyRanksKeepEverything) {
  for (const layout::LayoutConfig& layout : {layout::LayoutConfig{2, 1, 2, 2}, {4, 2, 4, 2}}) {
    SCOPED_TRACE(describe(layout));
    auto dry = symmetric_case(layout);
    dry.run.step.recompute = train::Recompute::kNone;
    dry.run.micro_batch_size = 2;
    expect_dry_run_is_the_run(dry);
  }
}

TEST(DryStep, ManyRanksWithFullLogitsAndTiedEmbeddings) {
  for (const layout::LayoutConfig& layout : {layout::LayoutConfig{2, 2, 1, 2}, {4, 2, 2, 4}}) {
    SCOPED_TRACE(describe(layout));
    auto dry = symmetric_case(layout);
    dry.run.step.loss = ops::VocabLossKind::kFull;
    dry.run.model.tie_word_embeddings = true;
    expect_dry_run_is_the_run(dry);
  }
}

}  // namespace
}  // namespace steppe::testing
