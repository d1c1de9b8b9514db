#include "steppe/kernels/router.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>

#include "steppe/base/error.h"

namespace steppe::kernels {
namespace {

at::Tensor chosen(const at::Tensor& scores, const at::Tensor& bias, int64_t k) {
  const auto ids = at::full({scores.size(0), k}, -7, at::kInt);
  top_k(ids, scores, bias);
  return ids;
}

TEST(Router, SoftmaxMatchesFp64AndMayRunInPlace) {
  at::manual_seed(1);
  for (const int64_t experts : {1, 7, 16, 64, 129})
    for (const int64_t tokens : {0, 1, 300}) {
      const auto logits = at::randn({tokens, experts}) * 5;
      if (tokens > 0) logits[0] *= 2000;  // ±1e4
      const auto scores = at::empty_like(logits);
      softmax_rows(scores, logits);
      EXPECT_TRUE(at::allclose(scores.to(at::kDouble), logits.to(at::kDouble).softmax(-1), 2e-6, 1e-12));
      softmax_rows(logits, logits);
      EXPECT_TRUE(at::equal(logits, scores));
    }
}

// Sorted by value, then by id, in plain loops.
at::Tensor top_k_by_sorting(const at::Tensor& values, int64_t k) {
  return std::get<1>(values.sort(/*stable=*/true, -1, /*descending=*/true)).narrow(1, 0, k).to(at::kInt);
}

TEST(Router, TopKMatchesAStableSort) {
  at::manual_seed(2);
  for (const int64_t experts : {1, 8, 33, 128})
    for (const int64_t k : {1, 2, 8}) {
      if (k > experts) continue;
      const auto scores = at::rand({200, experts}), bias = at::randn({experts});
      EXPECT_TRUE(at::equal(chosen(scores, {}, k), top_k_by_sorting(scores, k)));
      EXPECT_TRUE(at::equal(chosen(scores, bias, k), top_k_by_sorting(scores + bias, k)));
      // Few distinct values: nearly every comparison is a tie.
      const auto tied = at::randint(0, 3, {200, experts}, at::kFloat);
      EXPECT_TRUE(at::equal(chosen(tied, {}, k), top_k_by_sorting(tied, k)));
    }
}

TEST(Router, TopKOfRowsWithoutNumbersIsStillValid) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const auto scores = at::stack(
      {at::full({6}, nan), at::full({6}, -INFINITY), at::tensor({nan, 1.f, nan, 2.f, -INFINITY, nan})});
  const auto ids = chosen(scores, {}, 6);
  for (int64_t t = 0; t < 3; ++t) {
    std::set<int> seen;
    for (int64_t j = 0; j < 6; ++j) seen.insert(ids[t][j].item<int>());
    EXPECT_EQ(seen, (std::set<int>{0, 1, 2, 3, 4, 5})) << "row " << t;
  }
  EXPECT_EQ(ids[2][0].item<int>(), 3);
  EXPECT_EQ(ids[2][1].item<int>(), 1);
}

void expect_backward(const at::Tensor& logits, const at::Tensor& ids, bool normalize) {
  const int64_t k = ids.size(1);
  const auto scores = at::empty_like(logits), weights = at::empty({logits.size(0), k});
  softmax_rows(scores, logits);
  gather_scores(weights, scores, ids, normalize);
  const auto x = logits.to(at::kDouble).detach().requires_grad_();
  auto want = x.softmax(-1).gather(1, ids.to(at::kLong));
  if (normalize) want = want / want.sum(-1, true);
  EXPECT_TRUE(at::allclose(weights.to(at::kDouble), want.detach(), 1e-5, 1e-9));
  const auto dweights = at::randn({logits.size(0), k});
  want.backward(dweights.to(at::kDouble));
  const auto dlogits = at::empty_like(logits);
  router_backward({dlogits, dweights, weights, scores, ids, normalize});
  EXPECT_TRUE(at::allclose(dlogits.to(at::kDouble), x.grad(), 1e-4, 1e-6));
  router_backward({scores, dweights, weights, scores, ids, normalize});
  EXPECT_TRUE(at::equal(scores, dlogits)) << "in place";
}

TEST(Router, BackwardMatchesAutograd) {
  at::manual_seed(3);
  for (const bool normalize : {true, false})
    for (const int64_t experts : {4, 16, 37})
      for (const int64_t k : {1, 2, 4})
        for (const int64_t tokens : {0, 1, 50}) {
          const auto logits = at::randn({tokens, experts});
          const auto scores = at::empty_like(logits);
          softmax_rows(scores, logits);
          expect_backward(logits, chosen(scores, {}, k), normalize);
        }
}

TEST(Router, BackwardOfATokenThatListsAnExpertTwice) {
  at::manual_seed(4);
  const auto ids = at::tensor({3, 3, 1, 0, 0, 0}, at::kInt).view({2, 3});
  for (const bool normalize : {true, false}) expect_backward(at::randn({2, 8}), ids, normalize);
}

TEST(Router, CountsRoutes) {
  at::manual_seed(5);
  const auto ids = at::randint(0, 9, {100, 4}, at::kInt);
  const auto counts = at::full({12}, 55, at::kLong);
  count_routes(counts, ids);
  EXPECT_TRUE(at::equal(counts, at::bincount(ids.flatten(), {}, 12)));
  count_routes(counts, at::empty({0, 4}, at::kInt));
  EXPECT_EQ(counts.sum().item<int64_t>(), 0);
}

TEST(Router, MetaReturnsAndMistakesAreNamed) {
  const auto meta = at::TensorOptions().device(at::kMeta);
  const auto scores = at::empty({5, 8}, meta), weights = at::empty({5, 2}, meta);
  const auto ids = at::empty({5, 2}, meta.dtype(at::kInt));
  softmax_rows(scores, scores);
  top_k(ids, scores, {});
  gather_scores(weights, scores, ids, true);
  router_backward({scores, weights, weights, scores, ids, true});
  count_routes(at::empty({8}, meta.dtype(at::kLong)), ids);

  EXPECT_THROW(chosen(at::rand({2, 4}), {}, 5), ValueError);
  EXPECT_THROW(chosen(at::rand({2, 100}), {}, kMaxTopK + 1), ValueError);
  EXPECT_THROW(chosen(at::rand({2, 4}), at::rand({3}), 2), ValueError);
  EXPECT_THROW(softmax_rows(at::rand({2, 4}), at::rand({2, 5})), ValueError);
  EXPECT_THROW(gather_scores(at::rand({2, 2}), at::rand({2, 4}), at::zeros({2, 3}, at::kInt), true),
               ValueError);
  EXPECT_THROW(count_routes(at::zeros({4}, at::kInt), at::zeros({2, 3}, at::kInt)), ValueError);
}

}  // namespace
}  // namespace steppe::kernels
