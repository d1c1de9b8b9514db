// What one document of a packed row does is no matter to the others.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

#include "steppe/comm/rank_threads.h"
#include "tests/training/small_run.h"

namespace steppe::testing {
namespace {

// Document 1 of sequence 0 is changed at its second token.
struct Change {
  int64_t document_begin = 0, document_end = 0, token = 0;
  bool concerns(int64_t token_id) const { return token_id >= document_begin && token_id < document_end; }
};

Change change_of(const SmallRun& run) {
  const auto sequence = small_sequence(run, 0);
  const int64_t begin = sequence.document_starts[1], end = sequence.document_starts[2];
  return {begin, end, begin + 1};
}

void apply(const Change& change, const SmallRun& run, std::vector<data::Microbatch>& batch) {
  for (auto& micro_batch : batch) {
    for (int64_t t = 0; t < micro_batch.num_tokens(); ++t) {
      if (micro_batch.token_ids[t] != change.token) continue;
      micro_batch.tokens[t] = static_cast<int32_t>((micro_batch.tokens[t] + 50) % run.model.vocab_size);
    }
  }
}

// The router decides for the changed document, so that loads differ; all others go where they went before.
class OthersReplayed final : public ops::RoutingSource {
 public:
  OthersReplayed(const Change& change, ops::GivenRouting before)
      : change_(change), before_(std::move(before)) {}

  std::vector<int64_t> choose(const ops::RoutedTokens& tokens, const at::Tensor& ids_Nk,
                              const at::Tensor& scores_NE, const at::Tensor& bias_E,
                              const at::Tensor& counts_E) override {
    router_.choose(tokens, ids_Nk, scores_NE, bias_E, counts_E);
    for (size_t t = 0; t < tokens.token_ids.size(); ++t) {
      if (change_.concerns(tokens.token_ids[t])) continue;
      const auto row = ids_Nk.narrow(0, static_cast<int64_t>(t), 1);
      before_.choose({tokens.layer, tokens.token_ids.subspan(t, 1)}, row, {}, {}, {});
    }
    std::vector<int64_t> counts(scores_NE.size(1), 0);
    const auto* ids = ids_Nk.const_data_ptr<int32_t>();
    for (int64_t i = 0; i < ids_Nk.numel(); ++i) ++counts[ids[i]];
    return counts;
  }

 private:
  const Change& change_;
  ops::GivenRouting before_;
  ops::TopKRouting router_;
};

using Losses = std::map<int64_t, float>;

Losses token_losses(const SmallRun& run, const std::function<std::unique_ptr<ops::RoutingSource>()>& routing,
                    const Change* change) {
  std::mutex mutex;
  Losses losses;
  on_all_ranks(run, routing, [&](Rank& rank) {
    auto batch = small_batch(run, 0, rank.group());
    if (change != nullptr) apply(*change, run, batch);
    rank.step.evaluate(batch, [&](std::span<const int64_t> ids, const at::Tensor& loss_n) {
      const std::lock_guard lock(mutex);
      for (size_t i = 0; i < ids.size(); ++i) {
        EXPECT_TRUE(losses.emplace(ids[i], loss_n[static_cast<int64_t>(i)].item<float>()).second) << ids[i];
      }
    });
  });
  return losses;
}

class Documents : public ::testing::TestWithParam<layout::LayoutConfig> {};

TEST_P(Documents, KeepTheirLossesWhenAnotherChanges) {
  auto run = small_run(2, GetParam());
  run.micro_batch_size = 2;
  const Change change = change_of(run);
  RoutingRecord record;
  const auto before = token_losses(
      run, [&] { return std::make_unique<RecordedTopK>(record); }, nullptr);
  const auto after = token_losses(
      run, [&] { return std::make_unique<OthersReplayed>(change, record.replay(run.model)); }, &change);
  ASSERT_EQ(before.size(), static_cast<size_t>(run.global_batch_size * run.seq_length));
  ASSERT_EQ(after.size(), before.size());
  double elsewhere = 0, inside = 0;
  for (const auto& [id, loss] : before) {
    const double difference = std::abs(static_cast<double>(loss) - after.at(id));
    (change.concerns(id) ? inside : elsewhere) =
        std::max(change.concerns(id) ? inside : elsewhere, difference);
  }
  EXPECT_LE(elsewhere, 1e-6);
  EXPECT_GT(inside, 1e-2) << "the change must be felt where it was made";
}

INSTANTIATE_TEST_SUITE_P(Layouts, Documents,
                         ::testing::Values(layout::LayoutConfig{1, 1, 1, 1}, layout::LayoutConfig{2, 1, 2, 2},
                                           layout::LayoutConfig{2, 2, 1, 1}, layout::LayoutConfig{2, 2, 2, 2},
                                           layout::LayoutConfig{4, 4, 1, 1}, layout::LayoutConfig{4, 4, 4, 4},
                                           layout::LayoutConfig{4, 2, 4, 2}));

// Attention's outputs, [S, hq·d] of the whole row, over D ranks.
at::Tensor attention_outputs(int degree, const std::vector<int64_t>& bounds, const at::Tensor& qkv_Shd) {
  const auto parts = [&](int rank) { return layout::even_part(bounds.back(), degree, rank); };
  ops::UlyssesShape shape{8, 2, 16, 0.25, {}, bounds};
  for (int r = 0; r < degree; ++r) shape.tokens_of_rank.push_back(parts(r).size());
  std::vector<at::Tensor> outputs(degree);
  comm::run_ranks(degree, [&](int rank, const c10::intrusive_ptr<c10d::Store>& store) {
    const layout::RankLayout layout({degree, degree, 1, 1}, rank);
    const auto groups = comm::make_groups(layout, store, std::chrono::minutes(5), /*cuda=*/false);
    Counters counters;
    const ops::OpContext context{at::kCPU, at::kFloat, &counters};
    const auto mine = qkv_Shd.narrow(0, parts(rank).begin, parts(rank).size());
    ops::UlyssesSaved saved;
    outputs[rank] = ops::ulysses_attention_forward(context, *groups.sequence, shape, mine.narrow(1, 0, 8),
                                                   mine.narrow(1, 8, 2), mine.narrow(1, 10, 2), saved);
    groups.control->barrier();
  });
  return at::cat(outputs);
}

TEST(DocumentsInAttention, KeepTheirBitsWhenAnotherChanges) {
  const std::vector<int64_t> bounds = {0, 13, 14, 41, 67};
  at::manual_seed(5);
  const auto before = at::randn({bounds.back(), 12, 16});
  auto after = before.clone();
  after[20].add_(1);  // in [14, 41)
  for (const int degree : {1, 2, 4}) {
    const auto out_before = attention_outputs(degree, bounds, before);
    const auto out_after = attention_outputs(degree, bounds, after);
    EXPECT_TRUE(at::equal(out_before.narrow(0, 0, 14), out_after.narrow(0, 0, 14))) << "D=" << degree;
    EXPECT_TRUE(at::equal(out_before.narrow(0, 41, 26), out_after.narrow(0, 41, 26))) << "D=" << degree;
    EXPECT_TRUE(at::equal(out_before.narrow(0, 14, 6), out_after.narrow(0, 14, 6))) << "causal, D=" << degree;
    EXPECT_FALSE(at::equal(out_before[21], out_after[21])) << "D=" << degree;
  }
}

}  // namespace
}  // namespace steppe::testing
