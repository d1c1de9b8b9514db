#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "steppe/base/error.h"
#include "steppe/data/batch_source.h"
#include "steppe/data/test_files.h"

namespace steppe::data {
namespace {

constexpr int64_t kVocab = 60'000;

DataConfig config_of(const TemporaryFolder& folder, int64_t seq_length) {
  DataConfig config;
  config.seq_length = seq_length;
  config.train = {{folder / "set", "set", 1}};
  return config;
}

void expect_same(const Microbatch& a, const Microbatch& b) {
  EXPECT_EQ(a.tokens, b.tokens);
  EXPECT_EQ(a.targets, b.targets);
  EXPECT_EQ(a.positions, b.positions);
  EXPECT_EQ(a.document_bounds, b.document_bounds);
  EXPECT_EQ(a.token_ids, b.token_ids);
  EXPECT_EQ(a.num_targets, b.num_targets);
}

TEST(Blend, CountsFollowTheWeights) {
  const std::vector<double> weights = {1, 5, 0.5, 3.5};
  const Blend blend(weights);
  std::vector<int64_t> counts(4, 0);
  for (int64_t i = 0; i < 5000; ++i) {
    const Blend::Choice choice = blend.choose(i);
    ASSERT_LT(choice.dataset, 4u);
    ASSERT_EQ(choice.index, counts[choice.dataset]) << "sequence " << i;  // none is skipped or repeated
    ++counts[choice.dataset];
    for (size_t d = 0; d < 4; ++d) {
      ASSERT_NEAR(static_cast<double>(counts[d]), static_cast<double>(i + 1) * weights[d] / 10, 2.5);
    }
  }
}

TEST(Blend, LargeNumbersAndExtremeWeightsStayExact) {
  const Blend blend({1e20, 1});
  int64_t before = blend.choose(int64_t{1} << 50).index;
  for (int64_t i = (int64_t{1} << 50) + 1; i < (int64_t{1} << 50) + 100; ++i) {
    EXPECT_EQ(blend.choose(i).index, ++before);
  }
  EXPECT_EQ(Blend({2}).choose(77).index, 77);
  EXPECT_THROW(Blend({}), ValueError);
  EXPECT_THROW(Blend({1, 0}), ValueError);
  EXPECT_THROW(Blend({1, std::nan("")}), ValueError);
}

TEST(Blend, AnEpochCoversEveryDataset) {
  const Blend blend({1, 3});
  for (const auto& counts : {std::vector<int64_t>{10, 10}, {10, 30}, {1, 300}, {0, 1}}) {
    const int64_t epoch = blend.sequences_covering(counts);
    std::vector<int64_t> got(2, 0);
    for (int64_t i = 0; i < epoch; ++i) ++got[blend.choose(i).dataset];
    EXPECT_GE(got[0], counts[0]);
    EXPECT_GE(got[1], counts[1]);
    --got[blend.choose(epoch - 1).dataset];
    EXPECT_TRUE(got[0] < counts[0] || got[1] < counts[1]) << "one fewer covers too";
  }
  EXPECT_EQ(Blend({1}).sequences_covering({17}), 17);
}

TEST(BatchPlan, DealsEverySequenceOnceAndEvenly) {
  for (int64_t batch : {1, 2, 3, 7, 16}) {
    for (int64_t groups : {1, 2, 3, 4, 7}) {
      for (int64_t micro : {1, 2, 5}) {
        const BatchPlan plan({batch, micro, groups});
        std::vector<int64_t> all;
        int64_t fewest = batch;
        int64_t most = 0;
        for (int64_t g = 0; g < groups; ++g) {
          const auto dealt = plan.micro_batches(3, g);
          ASSERT_EQ(static_cast<int64_t>(dealt.size()), plan.num_micro_batches(batch));
          int64_t own = 0;
          for (const auto& sequences : dealt) {
            ASSERT_LE(static_cast<int64_t>(sequences.size()), micro);
            own += static_cast<int64_t>(sequences.size());
            all.insert(all.end(), sequences.begin(), sequences.end());
          }
          fewest = std::min(fewest, own);
          most = std::max(most, own);
        }
        EXPECT_LE(most - fewest, 1);
        EXPECT_EQ(plan.num_micro_batches(batch), (most + micro - 1) / micro);
        ASSERT_EQ(static_cast<int64_t>(all.size()), batch);
        for (int64_t i = 0; i < batch; ++i) EXPECT_EQ(all[static_cast<size_t>(i)], 3 * batch + i);
      }
    }
  }
  EXPECT_THROW(BatchPlan({0, 1, 1}), ValueError);
  EXPECT_THROW(BatchPlan({1, 0, 1}), ValueError);
}

TEST(BatchSource, GroupsTogetherReadWhatOneReads) {
  TemporaryFolder folder;
  write_indexed(folder / "set", numbered_documents({5, 0, 1, 17, 2, 64, 1, 3, 9}));
  const DataConfig config = config_of(folder, 8);
  BatchSource one(config, {5, 5, 1}, 0, kVocab);
  for (int64_t groups : {2, 3, 4, 7}) {
    for (int64_t step = 0; step < 4; ++step) {
      const auto whole = one.read(step);
      ASSERT_EQ(whole.size(), 1u);
      Microbatch joined;
      for (int64_t g = 0; g < groups; ++g) {
        BatchSource part(config, {5, 2, groups}, g, kVocab);
        const auto own = part.read(step);
        ASSERT_EQ(static_cast<int64_t>(own.size()), part.num_micro_batches());
        for (const Microbatch& micro_batch : own) {
          const auto base = joined.num_tokens();
          ASSERT_EQ(micro_batch.document_bounds.front(), 0);
          ASSERT_EQ(micro_batch.document_bounds.back(), micro_batch.num_tokens());
          joined.tokens.insert(joined.tokens.end(), micro_batch.tokens.begin(), micro_batch.tokens.end());
          joined.targets.insert(joined.targets.end(), micro_batch.targets.begin(), micro_batch.targets.end());
          joined.positions.insert(joined.positions.end(), micro_batch.positions.begin(),
                                  micro_batch.positions.end());
          joined.token_ids.insert(joined.token_ids.end(), micro_batch.token_ids.begin(),
                                  micro_batch.token_ids.end());
          for (size_t b = 1; b < micro_batch.document_bounds.size(); ++b) {
            joined.document_bounds.push_back(base + micro_batch.document_bounds[b]);
          }
          joined.num_targets += micro_batch.num_targets;
        }
      }
      expect_same(joined, whole[0]);
    }
  }
}

TEST(BatchSource, MicrobatchesAreConsistent) {
  TemporaryFolder folder;
  write_indexed(folder / "set", numbered_documents({5, 1, 17, 2, 64, 1, 3, 9}));
  BatchSource source(config_of(folder, 8), {4, 3, 1}, 0, kVocab);
  std::set<int64_t> ids;
  for (int64_t step = 0; step < 6; ++step) {
    const auto micro_batches = source.read(step);
    ASSERT_EQ(micro_batches.size(), 2u);
    EXPECT_EQ(micro_batches[0].num_tokens(), 24);
    EXPECT_EQ(micro_batches[1].num_tokens(), 8);
    for (const Microbatch& m : micro_batches) {
      EXPECT_TRUE(std::adjacent_find(m.document_bounds.begin(), m.document_bounds.end(),
                                     std::greater_equal<>()) == m.document_bounds.end());
      EXPECT_EQ(m.num_targets, static_cast<int64_t>(m.targets.size()) -
                                   std::count(m.targets.begin(), m.targets.end(), kIgnoredTarget));
      for (const int64_t id : m.token_ids) EXPECT_TRUE(ids.insert(id).second);
    }
  }
  EXPECT_EQ(*ids.rbegin(), 6 * 4 * 8 - 1);
}

TEST(BatchSource, ResumesAnywhereAndInAnyOrder) {
  TemporaryFolder folder;
  write_indexed(folder / "set", numbered_documents({5, 1, 17, 2, 64, 1, 3, 9}));
  write_indexed(folder / "other", numbered_documents({20, 30}));
  DataConfig config = config_of(folder, 8);
  config.train.push_back({folder / "other", "other", 0.5});
  BatchSource straight(config, {3, 2, 1}, 0, kVocab);
  std::vector<std::vector<Microbatch>> steps;
  for (int64_t step = 0; step < 30; ++step) steps.push_back(straight.read(step));
  BatchSource jumping(config, {3, 2, 1}, 0, kVocab);
  for (int64_t step : {29, 7, 8, 9, 9, 0, 17}) {
    const auto got = jumping.read(step);
    ASSERT_EQ(got.size(), steps[static_cast<size_t>(step)].size());
    for (size_t m = 0; m < got.size(); ++m) expect_same(got[m], steps[static_cast<size_t>(step)][m]);
  }
}

TEST(BatchSource, AnErrorReachesTheCallerOfItsStepOnly) {
  TemporaryFolder folder;
  Documents documents = numbered_documents({8, 8, 8});
  documents[2][3] = 65'000;
  write_indexed(folder / "set", documents);
  DataConfig config = config_of(folder, 8);
  config.shuffle = false;
  BatchSource source(config, {1, 1, 1}, 0, kVocab);
  EXPECT_EQ(source.read(0)[0].num_tokens(), 8);
  EXPECT_EQ(source.read(1)[0].num_tokens(), 8);
  EXPECT_THROW(source.read(2), ValueError);
  EXPECT_EQ(source.read(3)[0].num_tokens(), 8);
}

TEST(BatchSource, ValidationIsReadOnceInOrder) {
  TemporaryFolder folder;
  write_indexed(folder / "set", numbered_documents({5, 1, 17, 2, 64, 1, 3, 9}));
  write_indexed(folder / "quiz", numbered_documents({10, 11, 12}));
  DataConfig config = config_of(folder, 8);
  config.validation = {{folder / "quiz", "quiz", 1}};
  config.val_split = 0.3;
  std::vector<int32_t> run;
  BatchSource a(config, {3, 2, 2}, 0, kVocab);
  BatchSource b(config, {3, 2, 2}, 1, kVocab);
  ASSERT_EQ(a.num_validation_sets(), 2u);
  EXPECT_EQ(a.validation_name(0), "quiz");
  EXPECT_EQ(a.validation_name(1), "set");
  ASSERT_EQ(a.num_validation_steps(0), 2);  // 32 inputs, 4 sequences
  int64_t targets = 0;
  for (int64_t step = 0; step < 2; ++step) {
    const auto of_a = a.validation_microbatches(0, step);
    const auto of_b = b.validation_microbatches(0, step);
    ASSERT_EQ(of_a.size(), of_b.size());
    for (const auto* micro_batches : {&of_a, &of_b}) {
      for (const Microbatch& m : *micro_batches) {
        run.insert(run.end(), m.tokens.begin(), m.tokens.end());
        targets += m.num_targets;
      }
    }
  }
  ASSERT_EQ(run.size(), 32u);
  for (size_t i = 0; i < run.size(); ++i) EXPECT_EQ(run[i], static_cast<int32_t>(i) + 1);
  EXPECT_EQ(targets, 9 + 10 + 11);
}

TEST(BatchSource, MistakesAreRefusedAtConstruction) {
  TemporaryFolder folder;
  write_indexed(folder / "set", numbered_documents({5, 9}));
  const DataConfig config = config_of(folder, 8);
  EXPECT_THROW(BatchSource(config, {1, 1, 2}, 2, kVocab), ValueError);
  DataConfig none = config;
  none.train.clear();
  EXPECT_THROW(BatchSource(none, {1, 1, 1}, 0, kVocab), ValueError);
  DataConfig twice = config;
  twice.train.push_back(twice.train[0]);
  EXPECT_THROW(BatchSource(twice, {1, 1, 1}, 0, kVocab), ValueError);
  DataConfig missing = config;
  missing.train[0].path = folder / "nothing";
  EXPECT_THROW(BatchSource(missing, {1, 1, 1}, 0, kVocab), RuntimeFailure);
  DataConfig clash = config;
  clash.validation = {{folder / "set", "set", 1}};
  clash.val_split = 0.5;
  EXPECT_THROW(BatchSource(clash, {1, 1, 1}, 0, kVocab), ValueError);
  DataConfig split = config;
  split.val_split = 1;
  EXPECT_THROW(BatchSource(split, {1, 1, 1}, 0, kVocab), ValueError);
  EXPECT_THROW(over_length_from_name("cut"), ValueError);
  EXPECT_EQ(over_length_from_name("drop"), OverLength::kDrop);
}

}  // namespace
}  // namespace steppe::data
