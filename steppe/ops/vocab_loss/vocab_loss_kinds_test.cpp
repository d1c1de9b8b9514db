// Every kind against whole logits in fp64.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "steppe/base/error.h"
#include "steppe/kernels/compare_test.h"
#include "steppe/ops/vocab_loss/group_case_test.h"
#include "steppe/ops/vocab_loss/kept_rows.h"

namespace steppe::ops {
namespace {

using namespace testing;
using kernels::relative_error;

// A logit is a sum of H terms in fp32, rounded once to the working dtype; a probability's relative error is
// twice the logit's absolute one (its own, and the normalizer's). On the way every value is rounded a few
// more times.
double logit_error(const GroupCase& of, const VocabLossReference& want) {
  return want.logit_size * (static_cast<double>(of.hidden + 2) * 0x1p-24 +
                            (of.dtype == at::kBFloat16 ? kernels::unit_roundoff(of.dtype) : 0));
}
double gradient_bound(const GroupCase& of, const VocabLossReference& want, int64_t terms) {
  return 4 * logit_error(of, want) + 4 * kernels::unit_roundoff(of.dtype) +
         static_cast<double>(terms + 8) * 0x1p-24;
}

void expect_right(const GroupCase& of, const GroupBatch& batch, const VocabLossReference& want,
                  const RankRun& got, bool gradient) {
  const int64_t n = got.x.size(0);
  const auto row_loss = want.row_loss_N.narrow(0, got.begin, n);
  const double row_error = 2 * logit_error(of, want) + 2 * (want.logit_size + 1) * 16 * 0x1p-24;
  EXPECT_LE(relative_error(got.row_loss, row_loss, 1), row_error);
  EXPECT_NEAR(got.loss.item<double>() - 1, row_loss.sum().item<double>(),
              row_error * static_cast<double>(n) + 1e-9);
  if (!gradient) {
    EXPECT_TRUE(at::equal(got.dx, at::full_like(got.dx, -7)));
    return;
  }
  const int64_t vocab_terms = of.vocab + of.degree();
  EXPECT_LE(relative_error(got.dx, want.dx_NH.narrow(0, got.begin, n), want.dx_size),
            gradient_bound(of, want, vocab_terms));
  const auto start = batch.start_grad_VH.narrow(0, got.columns.begin, got.columns.size());
  const auto grad =
      want.grad_weight_VH.narrow(0, got.columns.begin, got.columns.size()) + start.to(at::kDouble);
  EXPECT_LE(relative_error(got.grad, grad, want.grad_size), gradient_bound(of, want, of.rows()));
}

void check(const GroupCase& of, const std::vector<NamedOptions>& kinds, bool gradient = true) {
  const auto batch = make_batch(of);
  const auto want = expected_of(batch);
  on_group(of, [&](int rank, comm::Communicator& group) {
    for (const auto& [name, options] : kinds) {
      SCOPED_TRACE(::testing::Message()
                   << name << ", P = " << of.degree() << ", " << c10::toString(of.dtype));
      RankRun run(of, batch, rank);
      run.run(options, group, gradient);
      expect_right(of, batch, want, run, gradient);
    }
  });
}

std::vector<int64_t> uneven_rows(int degree) {
  const std::vector<int64_t> rows{9, 0, 14, 5, 1, 8, 12};
  return {rows.begin(), rows.begin() + degree};
}

TEST(VocabLossKinds, GiveFp64sLossAndGradients) {
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    for (const int degree : comm::kWorldSizes) {
      GroupCase of{uneven_rows(degree)};
      of.dtype = dtype;
      check(of, every_kind());
    }
  }
}

TEST(VocabLossKinds, EvaluateWithoutTouchingGradients) {
  for (const int degree : {1, 3}) check({uneven_rows(degree)}, every_kind(), /*gradient=*/false);
}

TEST(VocabLossKinds, MoreRanksThanVocabularyEntries) {
  GroupCase of{{3, 5, 2, 4}};
  of.vocab = 3;
  check(of, every_kind());
}

TEST(VocabLossKinds, LogitsOfTenThousand) {
  for (const int degree : {1, 3}) {
    GroupCase of{uneven_rows(degree)};
    of.logit_scale = 3e3;
    const auto batch = make_batch(of);
    ASSERT_GT(batch.x_RH.matmul(batch.weight_VH.t()).abs().max().item<float>(), 5e3);
    const auto want = expected_of(batch);
    for (const auto& [name, options] : every_kind()) {
      SCOPED_TRACE(name);
      on_group(of, [&](int rank, comm::Communicator& group) {
        RankRun got(of, batch, rank);
        got.run(options, group);
        const auto row_loss = want.row_loss_N.narrow(0, got.begin, got.x.size(0));
        EXPECT_LE(relative_error(got.row_loss, row_loss), 1e-5);
        EXPECT_TRUE(got.dx.isfinite().all().item<bool>());
        EXPECT_TRUE(got.grad.isfinite().all().item<bool>());
      });
    }
  }
}

TEST(VocabLossKinds, IgnoredRowsHaveNoPart) {
  for (const bool host_targets : {false, true}) {
    for (const double ignored : {0.0, 0.6, 1.1}) {
      for (const int degree : {1, 2, 4}) {
        for (const auto dtype : {at::kFloat, at::kBFloat16}) {
          GroupCase of{uneven_rows(degree)};
          of.ignored = ignored;
          of.host_targets = host_targets;
          of.dtype = dtype;
          check(of, every_kind());
        }
      }
    }
  }
}

TEST(VocabLossKinds, RowLossesOfCompactedEvaluation) {
  GroupCase of{{9, 0, 14}};
  of.ignored = 0.5;
  of.host_targets = true;
  check(of, {{"tiled by 4", options_of(VocabLossKind::kTiled, 4)}}, /*gradient=*/false);
}

// NaN in a row without a target must reach neither loss nor gradient.
TEST(VocabLossKinds, WhatIgnoredRowsHoldDoesNotMatterToTheLoss) {
  GroupCase of{{6, 7}};
  const auto batch = make_batch(of);
  batch.targets_R[3] = -100;
  const auto want = expected_of(batch);
  auto broken = batch;
  broken.x_RH = batch.x_RH.clone();
  broken.x_RH[3].fill_(std::nan(""));
  of.host_targets = true;
  on_group(of, [&](int rank, comm::Communicator& group) {
    RankRun got(of, broken, rank);
    got.run(options_of(VocabLossKind::kTiled, 4), group);
    expect_right(of, batch, want, got, true);
  });
}

TEST(VocabLossKinds, CountTheirProducts) {
  GroupCase of{{9, 3, 14}};
  of.ignored = 0.5;
  const auto batch = make_batch(of);
  const int64_t kept = (batch.targets_R >= 0).sum().item<int64_t>();
  const auto flops = [&](const VocabLossOptions& options, bool host_targets, bool gradient) {
    auto with = of;
    with.host_targets = host_targets;
    int64_t total = 0;
    std::mutex mutex;
    on_group(with, [&](int rank, comm::Communicator& group) {
      RankRun run(with, batch, rank);
      run.run(options, group, gradient);
      const std::lock_guard lock(mutex);
      total += run.counters.flops[FlopKind::kVocab];
    });
    return total;
  };
  using enum VocabLossKind;
  const int64_t product = 2 * of.rows() * of.hidden * of.vocab,
                kept_product = 2 * kept * of.hidden * of.vocab;
  EXPECT_EQ(flops(options_of(kTiled, 4), false, true), 3 * product);
  EXPECT_EQ(flops(options_of(kTiled, 4), true, true), 3 * kept_product);
  EXPECT_EQ(flops(options_of(kTiled, 4), false, false), product);
  for (const auto circulate : {Circulate::kActivations, Circulate::kWeights}) {
    EXPECT_EQ(flops(options_of(kRing, 4, circulate), false, true), 4 * product);
    EXPECT_EQ(flops(options_of(kRing, 4, circulate), false, false), product);
  }
}

TEST(VocabLossKinds, GiveTheSameBitsEveryTime) {
  GroupCase of{{9, 0, 14}};
  const auto batch = make_batch(of);
  for (const auto& [name, options] : every_kind()) {
    SCOPED_TRACE(name);
    on_group(of, [&](int rank, comm::Communicator& group) {
      RankRun first(of, batch, rank), second(of, batch, rank);
      first.run(options, group);
      second.run(options, group);
      EXPECT_TRUE(at::equal(first.loss, second.loss));
      EXPECT_TRUE(at::equal(first.dx, second.dx));
      EXPECT_TRUE(at::equal(first.grad, second.grad));
    });
  }
}

TEST(VocabLossKinds, RefuseWhatDoesNotFit) {
  const GroupCase of{{5}};
  const auto batch = make_batch(of);
  const auto refused = [&](const std::function<void(RankRun&)>& spoil, const std::string& naming) {
    comm::LocalCommunicator group("vocab", at::kCPU);
    RankRun run(of, batch, 0);
    spoil(run);
    try {
      run.run(VocabLossKind::kTiled, group);
      ADD_FAILURE() << "accepted: " << naming;
    } catch (const ValueError& error) {
      EXPECT_NE(std::string(error.what()).find(naming), std::string::npos) << error.what();
    }
  };
  refused([](RankRun& run) { run.x = run.x.to(at::kBFloat16); }, "x must be");
  refused([](RankRun& run) { run.x = run.x.narrow(0, 0, 4).contiguous(); }, "targets must be");
  refused([](RankRun& run) { run.targets = run.targets.to(at::kLong); }, "targets must be");
  refused([](RankRun& run) { run.weight = run.weight.narrow(0, 1, 52); }, "owns columns [0, 53)");
  refused([](RankRun& run) { run.columns.begin = 1; }, "owns columns [0, 53)");
  refused([](RankRun& run) { run.grad = run.grad.to(at::kBFloat16); }, "grad_weight must be");
  refused([](RankRun& run) { run.grad.reset(); }, "both, or neither");
  refused([](RankRun& run) { run.row_weight.reset(); }, "row_weight must be");
  refused([](RankRun& run) { run.host_targets = {1, 2, 3, 4, 5}; }, "targets_of_rank");
}

TEST(KeptRows, AreMovedInRuns) {
  const std::vector<int32_t> targets{-1, 3, 4, -1, -1, 0, 7, 8, -1};
  const KeptRows kept(targets);
  EXPECT_EQ(kept.size(), 5);
  EXPECT_FALSE(kept.all());
  const auto blocks = kept.blocks(1, 3);
  ASSERT_EQ(blocks.size(), 2U);
  EXPECT_EQ(std::tie(blocks[0].to, blocks[0].from, blocks[0].rows), std::make_tuple(0, 2, 1));
  EXPECT_EQ(std::tie(blocks[1].to, blocks[1].from, blocks[1].rows), std::make_tuple(1, 5, 2));
  EXPECT_TRUE(kept.blocks(5, 0).empty());
  EXPECT_TRUE(KeptRows(std::vector<int32_t>{1, 2}).all());
  EXPECT_EQ(KeptRows(std::vector<int32_t>{-1, -1}).size(), 0);
}

}  // namespace
}  // namespace steppe::ops
