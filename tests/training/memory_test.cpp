// Every byte of a training step has an owner, and its peak is a fact: the same number every time.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <numeric>

#include "steppe/memory/scope.h"
#include "tests/training/small_run.h"

namespace steppe::testing {
namespace {

using memory::BytesByCategory;
using memory::Category;

constexpr Category kPersistent[] = {Category::kWeights, Category::kGrads, Category::kOptimizer};

int64_t sum(const BytesByCategory& bytes) {
  return std::accumulate(bytes.begin(), bytes.end(), int64_t{0});
}
int64_t of(const BytesByCategory& bytes, Category category) {
  return bytes[static_cast<size_t>(category)];
}

// Experts of every load, from none to many tokens, the same in every step.
std::unique_ptr<ops::RoutingSource> uneven_routing(const SmallRun& run) {
  const int64_t num_experts = run.model.num_experts;
  return std::make_unique<ops::GivenRouting>(
      [num_experts](int64_t layer, int64_t token, std::span<int32_t> experts) {
        for (size_t j = 0; j < experts.size(); ++j) {
          experts[j] =
              static_cast<int32_t>((token * token * token + layer + static_cast<int64_t>(j)) % num_experts);
        }
      },
      ops::RouterConfig{num_experts, run.model.num_experts_per_tok, run.model.norm_topk_prob});
}

void on_all_ranks(const SmallRun& run, const std::function<void(Rank&)>& body) {
  on_all_ranks(
      run, [&] { return uneven_routing(run); }, body);
}

const std::vector<layout::LayoutConfig> kLayouts = {{1, 1, 1, 1}, {2, 2, 1, 2}, {4, 1, 2, 4}, {4, 2, 4, 2}};

TEST(StepMemory, CategoriesSumToTheTotal) {
  for (const auto& layout : kLayouts) {
    on_all_ranks(small_run(2, layout), [](Rank& rank) {
      const auto& ledger = memory::current_ledger();
      rank.step.train(small_batch(rank.run, 0, rank.group()), rank.run.lr, 1);
      const auto peak = ledger.peak();
      EXPECT_GT(peak.bytes, ledger.live_bytes());
      EXPECT_EQ(sum(peak.by_category), peak.bytes);
      EXPECT_EQ(sum(ledger.live_by_category()), ledger.live_bytes());
      EXPECT_EQ(ledger.live_bytes(memory::Domain::kHost), 0);
    });
  }
}

TEST(StepMemory, PeakIsTheSameOnEveryRepeat) {
  for (const auto& layout : kLayouts) {
    auto run = small_run(2, layout);
    run.step.bias_update_rate = 1e-3;
    on_all_ranks(run, [](Rank& rank) {
      auto& ledger = memory::current_ledger();
      const auto batch = small_batch(rank.run, 0, rank.group());
      memory::Peak first;
      for (int64_t step = 1; step <= 5; ++step) {
        ledger.reset_peak();
        rank.step.train(batch, rank.run.lr, step);
        const auto peak = ledger.peak();
        if (step == 1) first = peak;
        EXPECT_EQ(peak.bytes, first.bytes) << "rank " << rank.layout.rank() << " step " << step;
        EXPECT_EQ(peak.by_category, first.by_category);
        EXPECT_EQ(peak.mark, first.mark);
      }
    });
  }
}

TEST(StepMemory, HardlyAByteIsUntagged) {
  for (const auto recompute : {train::Recompute::kFull, train::Recompute::kNone}) {
    for (const auto& layout : kLayouts) {
      auto run = small_run(2, layout);
      run.step.recompute = recompute;
      on_all_ranks(run, [](Rank& rank) {
        auto& ledger = memory::current_ledger();
        rank.step.train(small_batch(rank.run, 0, rank.group()), rank.run.lr, 1);
        // The most that was ever untagged, not only at the peak.
        EXPECT_LE(of(ledger.peak_by_own_category(), Category::kUntagged), ledger.peak().bytes / 100);
      });
    }
  }
}

// Threads of a kernel allocate on their own: booked to the process, where no scope reaches.
TEST(StepMemory, NorAreTheWorkersBytes) {
  auto& process = memory::process_ledger();
  process.reset_peak();
  const int64_t before = process.live_bytes();
  int64_t step_peak = 0;
  on_all_ranks(small_run(2, {}), [&](Rank& rank) {
    at::set_num_threads(2);
    rank.step.train(small_batch(rank.run, 0, rank.group()), rank.run.lr, 1);
    step_peak = memory::current_ledger().peak().bytes;
  });
  EXPECT_LE(process.peak().bytes - before, step_peak / 100);
  EXPECT_EQ(process.live_bytes(), before);
}

TEST(StepMemory, OnlyTheModelOutlivesAStep) {
  for (const auto recompute : {train::Recompute::kFull, train::Recompute::kNone}) {
    for (const auto& layout : kLayouts) {
      auto run = small_run(2, layout);
      run.step.recompute = recompute;
      run.step.bias_update_rate = 1e-3;
      on_all_ranks(run, [](Rank& rank) {
        const auto& ledger = memory::current_ledger();
        const auto before = ledger.live_by_category();
        const auto batch = small_batch(rank.run, 0, rank.group());
        rank.step.train(batch, rank.run.lr, 1);
        EXPECT_EQ(ledger.live_by_category(), before);
        rank.step.evaluate(batch);
        EXPECT_EQ(ledger.live_by_category(), before);
        int64_t persistent = 0;
        for (const auto category : kPersistent) persistent += of(before, category);
        EXPECT_EQ(persistent, ledger.live_bytes());
      });
    }
  }
}

// What a rank must keep, from the shape of the model: parameters times bytes, in shards of 16 elements a
// rank.
int64_t padded(int64_t parameters, int64_t ranks) {
  return (parameters + 16 * ranks - 1) / (16 * ranks) * (16 * ranks);
}

struct PersistentBytes {
  int64_t weights = 0, grads = 0, optimizer = 0;

  int64_t gradient_itemsize = 4;

  // Working weights whole or sharded over `replicas`; gradients whole, or reduced to the shard at once; two
  // moments of the shard, and a master where weights are bf16.
  void add(int64_t parameters, int64_t replicas, bool sharded, int64_t itemsize) {
    const int64_t whole = padded(parameters, replicas), shard = whole / replicas;
    weights += (sharded ? shard : whole) * itemsize;
    grads += (sharded ? shard : whole) * gradient_itemsize;
    optimizer += shard * (itemsize == 4 ? 8 : 12);
  }
};

PersistentBytes expected_bytes(const Rank& rank) {
  const auto& c = rank.run.model;
  const auto& layout = rank.layout;
  const int64_t itemsize = rank.context.itemsize(), world = layout.world_size();
  // Sizes of small_model are multiples of 16, so that no parameter within a unit needs padding.
  const int64_t q = c.num_attention_heads * c.head_dim, kv = c.num_key_value_heads * c.head_dim,
                h = c.hidden_size;
  PersistentBytes bytes;
  bytes.gradient_itemsize = rank.run.state.gradient_itemsize();
  const auto interval = layout::even_part(c.vocab_size, layout.degree(layout::Axis::kVocab),
                                          layout.index_in_group(layout::Axis::kVocab));
  const int64_t num_tables = c.tie_word_embeddings ? 1 : 2;
  for (int64_t i = 0; i < num_tables; ++i) {
    bytes.add(interval.size() * h, layout.num_groups(layout::Axis::kVocab), /*sharded=*/false, itemsize);
  }
  bytes.add(h, world, /*sharded=*/true, itemsize);
  for (int64_t layer = 0; layer < c.num_hidden_layers; ++layer) {
    const int64_t attention =
        2 * h * (q + kv) + 2 * h + (c.qk_norm == model::QkNorm::kHead ? 2 * c.head_dim : 0);
    if (c.is_dense_layer(layer)) {
      bytes.add(attention + 3 * h * c.intermediate_size, world, true, itemsize);
      continue;
    }
    bytes.add(attention + c.num_experts * h + 3 * h * c.shared_expert_intermediate_size, world, true,
              itemsize);
    const int64_t experts = c.num_experts / layout.degree(layout::Axis::kExpert);
    bytes.add(experts * 3 * h * c.moe_intermediate_size, layout.num_groups(layout::Axis::kExpert), false,
              itemsize);
    bytes.weights += c.num_experts * 4;  // balancing biases
  }
  return bytes;
}

TEST(StepMemory, PersistentBytesAreTheFormula) {
  for (const auto& [dtype, gradient] :
       {std::pair{at::kFloat, at::kFloat}, {at::kBFloat16, at::kFloat}, {at::kBFloat16, at::kBFloat16}}) {
    for (const bool tied : {false, true}) {
      for (const auto& layout : kLayouts) {
        auto run = small_run(2, layout);
        run.dtype = dtype, run.state.gradient_dtype = gradient;
        run.model.tie_word_embeddings = tied;
        on_all_ranks(run, [](Rank& rank) {
          const auto expected = expected_bytes(rank);
          const auto live = memory::current_ledger().live_by_category();
          EXPECT_EQ(of(live, Category::kWeights), expected.weights);
          EXPECT_EQ(of(live, Category::kGrads), expected.grads);
          EXPECT_EQ(of(live, Category::kOptimizer), expected.optimizer);
          EXPECT_EQ(memory::current_ledger().live_bytes(),
                    expected.weights + expected.grads + expected.optimizer);
        });
      }
    }
  }
}

}  // namespace
}  // namespace steppe::testing
