#include "steppe/kernels/softmax_rows.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "steppe/base/error.h"

namespace steppe::kernels {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Strip {
  at::Tensor logits, targets;
  int64_t first_column = 0;
};

Strip random_strip(int64_t rows, int64_t columns, at::ScalarType dtype, double spread = 4) {
  at::manual_seed(7 + rows + columns);
  return {(at::randn({rows, columns}) * spread).to(dtype),
          at::randint(0, std::max<int64_t>(columns, 1), {rows}, at::kInt), 0};
}

at::Tensor statistics(const Strip& s) {
  const auto stats = at::full({s.logits.size(0), 3}, -77.f);
  logit_statistics(stats, s.logits, s.targets, s.first_column);
  return stats;
}

// Maximum, Σ e^{y−m} and the target's logit, by loops in fp64.
void expect_statistics(const Strip& s) {
  const auto stats = statistics(s);
  const auto logits = s.logits.to(at::kDouble);
  for (int64_t r = 0; r < logits.size(0); ++r) {
    double m = -kInfinity, z = 0;
    for (int64_t c = 0; c < logits.size(1); ++c) m = std::max(m, logits[r][c].item<double>());
    for (int64_t c = 0; c < logits.size(1); ++c)
      z += m == -kInfinity ? 0 : std::exp(logits[r][c].item<double>() - m);
    const int64_t target = s.targets[r].item<int>(), column = target - s.first_column;
    const bool here = target >= 0 && column >= 0 && column < logits.size(1);
    EXPECT_EQ(stats[r][0].item<double>(), m) << "row " << r;
    EXPECT_NEAR(stats[r][1].item<double>(), z, 1e-6 * z) << "row " << r;
    EXPECT_EQ(stats[r][2].item<double>(), here ? logits[r][column].item<double>() : -kInfinity)
        << "row " << r;
  }
}

TEST(SoftmaxRows, StatisticsMatchLoops) {
  for (const auto dtype : {at::kFloat, at::kBFloat16})
    for (const int64_t columns : {1, 15, 16, 33, 257, 2048, 2049})
      for (const int64_t rows : {1, 3}) expect_statistics(random_strip(rows, columns, dtype));
  expect_statistics(random_strip(2, 5000, at::kFloat));
}

TEST(SoftmaxRows, StatisticsOfExtremeRows) {
  Strip s = random_strip(6, 4100, at::kFloat);
  s.logits[0].fill_(-kInfinity);
  s.logits[1].fill_(-kInfinity);
  s.logits[1][4099].fill_(2.5);
  s.logits[2].fill_(1e4);
  s.logits[3].fill_(-1e4);
  s.logits[4][10].fill_(1e4);    // the maximum in the first block
  s.logits[5][4097].fill_(1e4);  // in the last: what came before must shrink to nothing
  expect_statistics(s);
  s.logits[0][3].fill_(std::nan(""));
  s.logits[2][4000].fill_(std::nan(""));
  const auto stats = statistics(s);
  EXPECT_TRUE(std::isnan(stats[0][1].item<double>()));
  EXPECT_TRUE(std::isnan(stats[2][1].item<double>()));
}

TEST(SoftmaxRows, TargetsOutsideTheStripAndEmptyStrips) {
  Strip s = random_strip(5, 40, at::kFloat);
  s.first_column = 100;
  s.targets = at::tensor({99, 100, 139, 140, -100}, at::kInt);
  expect_statistics(s);
  for (const auto& [rows, columns] : {std::pair<int64_t, int64_t>{0, 40}, {3, 0}, {0, 0}})
    expect_statistics(random_strip(rows, columns, at::kFloat));
}

TEST(SoftmaxRows, StridedRows) {
  const Strip wide = random_strip(4, 100, at::kFloat);
  Strip s{wide.logits.narrow(1, 13, 50), wide.targets, 20};
  expect_statistics(s);
  const auto before = wide.logits.clone(), stats = statistics(s);
  logits_to_gradient(s.logits, stats, s.targets, at::ones({4}), 20);
  EXPECT_TRUE(at::equal(before.narrow(1, 0, 13), wide.logits.narrow(1, 0, 13)));
  EXPECT_TRUE(at::equal(before.narrow(1, 63, 37), wide.logits.narrow(1, 63, 37)));
}

// The vocabulary cut into strips gives the loss and gradient of autograd's cross entropy in fp64.
void expect_cross_entropy(int64_t rows, const std::vector<int64_t>& cuts, at::ScalarType dtype,
                          double spread) {
  SCOPED_TRACE(testing::Message() << rows << " rows, " << cuts.size() - 1 << " strips, spread " << spread);
  const Strip whole = random_strip(rows, cuts.back(), dtype, spread);
  const auto targets = whole.targets;
  for (int64_t r = 2; r < rows; r += 3) targets[r].fill_(-100);
  const auto weight = at::rand({rows}) + 0.5;
  if (rows > 4) weight[4].fill_(0);
  const int64_t num_parts = static_cast<int64_t>(cuts.size()) - 1;
  const auto parts = at::empty({num_parts, rows, 3}), stats = at::empty({rows, 3});
  const auto strip = [&](const at::Tensor& x, int64_t p) {
    return x.narrow(1, cuts[p], cuts[p + 1] - cuts[p]);
  };
  for (int64_t p = 0; p < num_parts; ++p)
    logit_statistics(parts[p], strip(whole.logits, p), targets, cuts[p]);
  merge_statistics(stats, parts);
  const auto loss = at::full({1}, 3.0, at::kDouble), row_loss = at::empty({rows});
  add_loss(loss, row_loss, stats, targets, weight);

  const auto y = whole.logits.to(at::kDouble).detach().requires_grad_();
  const auto counts = targets.ge(0).to(at::kDouble);
  const auto picked = y.gather(1, targets.clamp_min(0).to(at::kLong).unsqueeze(1)).squeeze(1);
  const auto losses = (y.logsumexp(1) - picked) * counts;
  const auto want = (losses * weight).sum();
  want.backward();
  const double relative = 1e-6 * std::max(1.0, spread);
  EXPECT_NEAR(loss.item<double>(), 3.0 + want.item<double>(), relative * (1 + want.item<double>()));
  EXPECT_TRUE(at::allclose(row_loss.to(at::kDouble), losses.detach(), relative, relative));

  for (int64_t p = 0; p < num_parts; ++p)
    logits_to_gradient(strip(whole.logits, p), stats, targets, weight, cuts[p]);
  const double unit = dtype == at::kFloat ? relative : 4e-3;
  EXPECT_TRUE(at::allclose(whole.logits.to(at::kDouble), y.grad(), unit, unit));
}

TEST(SoftmaxRows, LossAndGradientMatchAutograd) {
  for (const double spread : {1.0, 30.0})
    for (const auto& cuts : {std::vector<int64_t>{0, 300}, {0, 100, 101, 101, 300}, {0, 17}, {0, 2500, 2600}})
      for (const int64_t rows : {1, 7}) expect_cross_entropy(rows, cuts, at::kFloat, spread);
  expect_cross_entropy(7, {0, 120, 300}, at::kBFloat16, 4.0);
}

TEST(SoftmaxRows, StatisticsAndGradientAtOnceAreTheSameBits) {
  at::manual_seed(3);
  const LossShape shape{8, 1e-2};
  for (const auto dtype : {at::kFloat, at::kBFloat16})
    for (const auto& [rows, columns] :
         std::vector<std::pair<int64_t, int64_t>>{{0, 5}, {4, 0}, {1, 1}, {40, 2600}}) {
      const auto logits = (at::randn({rows, columns}) * 3).clamp(-8, 8).to(dtype), twin = logits.clone();
      const auto targets = at::randint(-5, columns + 9, {rows}, at::kInt), weight = at::rand({rows});
      const auto stats = at::empty({rows, 3}), twin_stats = at::empty({rows, 3});
      statistics_and_gradient(stats, logits, targets, weight, 4, shape);
      logit_statistics(twin_stats, twin, targets, 4);
      logits_to_gradient(twin, twin_stats, targets, weight, 4, shape);
      EXPECT_TRUE(at::equal(stats, twin_stats));
      EXPECT_TRUE(at::equal(logits, twin));
    }
}

TEST(SoftmaxRows, LossOfManyRowsInAnyNumberOfThreads) {
  const int64_t rows = 70000;  // more than one group of blocks
  at::manual_seed(1);
  const auto stats = at::rand({rows, 3}) + 1, weight = at::rand({rows});
  const auto targets = at::randint(-1, 5, {rows}, at::kInt);
  const auto s = stats.to(at::kDouble);
  const auto losses = s.select(1, 0) + s.select(1, 1).log() - s.select(1, 2);
  const double want = (losses * targets.ge(0).to(at::kDouble) * weight.to(at::kDouble)).sum().item<double>();
  const int before = at::get_num_threads();
  std::vector<double> got;
  for (const int threads : {1, 2, 3}) {
    at::set_num_threads(threads);
    const auto loss = at::zeros({1}, at::kDouble);
    add_loss(loss, {}, stats, targets, weight);
    got.push_back(loss.item<double>());
  }
  at::set_num_threads(before);
  EXPECT_NEAR(got[0], want, 1e-9 * std::abs(want));
  EXPECT_EQ(got[0], got[1]);
  EXPECT_EQ(got[0], got[2]);
}

TEST(SoftmaxRows, CapMatchesTanh) {
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    for (const double cap : {0.5, 30.0}) {
      auto logits = (at::randn({5, 77}) * 20).to(dtype);
      logits[0][0] = 1e30;
      logits[0][1] = -1e30;
      logits[0][2] = -kInfinity;
      const auto want = (logits.to(at::kDouble) / cap).tanh() * cap;
      soft_cap(logits, cap);
      const auto error = (logits.to(at::kDouble) - want).abs();
      const double rounding = dtype == at::kFloat ? 0x1p-24 : 0x1p-8;
      EXPECT_LE((error - want.abs() * rounding).max().item<double>(), cap * 0x1p-22);
    }
  }
  EXPECT_THROW(soft_cap(at::zeros({2, 2}), 0), ValueError);
  soft_cap(at::empty({2, 2}, at::TensorOptions().device(at::kMeta)), 1);
}

TEST(SoftmaxRows, RowsThatDoNotCountAreZeroWhateverTheyHold) {
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    const auto logits = at::full({3, 50}, std::nan(""), at::TensorOptions().dtype(dtype));
    logits[2].fill_(-kInfinity);
    const auto targets = at::tensor({-100, 4, 5}, at::kInt), weight = at::tensor({1.f, 0.f, 0.f});
    const auto stats = statistics({logits, targets, 0});
    const auto loss = at::zeros({1}, at::kDouble), row_loss = at::empty({3});
    add_loss(loss, row_loss, stats, targets, weight);
    EXPECT_EQ(loss.item<double>(), 0);
    EXPECT_EQ(row_loss[0].item<double>(), 0);
    logits_to_gradient(logits, stats, targets, weight, 0);
    EXPECT_EQ(logits.abs().max().item<double>(), 0);
  }
}

TEST(SoftmaxRows, MetaReturnsAndMistakesAreNamed) {
  const auto meta = at::TensorOptions().device(at::kMeta);
  const auto logits = at::empty({3, 9}, meta), stats = at::empty({3, 3}, meta), weight = at::empty({3}, meta);
  const auto targets = at::empty({3}, meta.dtype(at::kInt));
  logit_statistics(stats, logits, targets, 0);
  merge_statistics(stats, at::empty({2, 3, 3}, meta));
  add_loss(at::empty({1}, meta.dtype(at::kDouble)), {}, stats, targets, weight);
  logits_to_gradient(logits, stats, targets, weight, 0);

  const Strip s = random_strip(3, 9, at::kFloat);
  EXPECT_THROW(logit_statistics(at::empty({2, 3}), s.logits, s.targets, 0), ValueError);
  EXPECT_THROW(logit_statistics(at::empty({3, 3}), s.logits, s.targets.to(at::kLong), 0), ValueError);
  EXPECT_THROW(logit_statistics(at::empty({3, 3}), s.logits.to(at::kDouble), s.targets, 0), ValueError);
  EXPECT_THROW(logit_statistics(at::empty({3, 3}), s.logits, s.targets, -1), ValueError);
  EXPECT_THROW(add_loss(at::zeros({1}), {}, at::empty({3, 3}), s.targets, at::empty({3})), ValueError);
}

}  // namespace
}  // namespace steppe::kernels
