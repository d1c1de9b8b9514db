#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "steppe/base/error.h"
#include "steppe/ops/router/router.h"
#include "steppe/ops/router/router_reference.h"

namespace steppe::ops {
namespace {

std::vector<int32_t> values_of(const at::Tensor& ids) {
  return {ids.data_ptr<int32_t>(), ids.data_ptr<int32_t>() + ids.numel()};
}

std::vector<int64_t> counts_of(const std::vector<int32_t>& ids, int64_t experts) {
  std::vector<int64_t> counts(experts, 0);
  for (const int32_t e : ids) ++counts[e];
  return counts;
}

struct Choice {
  std::vector<int32_t> ids;
  std::vector<int64_t> counts;
};

Choice choose(RoutingSource& source, const RoutedTokens& tokens, int64_t top_k, const at::Tensor& scores_NE,
              const at::Tensor& bias_E = {}) {
  const auto ids = at::full({scores_NE.size(0), top_k}, -7, at::kInt);
  const auto scratch = at::full({scores_NE.size(1)}, 99, at::kLong);
  auto counts = source.choose(tokens, ids, scores_NE, bias_E, scratch);
  return {values_of(ids), std::move(counts)};
}

TEST(TopKRouting, TakesTheLargestScoresAndOfEqualsTheFirst) {
  at::manual_seed(1);
  TopKRouting routing;
  for (const int64_t tokens : {0, 1, 23})
    for (const int64_t top_k : {1, 3, 9}) {
      const auto scores = at::rand({tokens, 9});
      const auto tied = at::randint(0, 3, {tokens, 9}, at::kFloat);
      const auto bias = at::randn({9});
      for (const auto& [values, offset] :
           std::vector<std::pair<at::Tensor, at::Tensor>>{{scores, {}},
                                                          {scores, bias},
                                                          {tied, {}},
                                                          {tied, at::ones({9})},
                                                          {at::zeros({tokens, 9}), {}}}) {
        const auto got = choose(routing, {}, top_k, values, offset);
        EXPECT_EQ(got.ids, top_k_reference(values, offset, top_k));
        EXPECT_EQ(got.counts, counts_of(got.ids, 9));
      }
    }
}

TEST(TopKRouting, TheBiasChoosesButDoesNotWeigh) {
  TopKRouting routing;
  const auto scores = at::tensor({0.5F, 0.3F, 0.2F}).view({1, 3}), bias = at::tensor({0.F, 0.F, 1.F});
  const auto chosen = choose(routing, {}, 1, scores, bias);
  EXPECT_EQ(chosen.ids, std::vector<int32_t>{2});
  Counters counters;
  const auto ids = at::tensor(chosen.ids, at::kInt).view({1, 1});
  const auto weights = router_weights({at::kCPU, at::kFloat, &counters}, {3, 1, false}, scores, ids);
  EXPECT_EQ(weights.item<float>(), 0.2F);
}

TEST(TopKRouting, HasNothingToChooseByInADryRun) {
  const auto meta = at::TensorOptions().device(at::kMeta);
  TopKRouting routing;
  EXPECT_THROW(routing.choose({}, at::empty({4, 2}, meta.dtype(at::kInt)), at::empty({4, 6}, meta), {},
                              at::empty({6}, meta.dtype(at::kLong))),
               InternalError);
}

// Something of layer, token and position.
void mixed(int64_t layer, int64_t token_id, std::span<int32_t> experts) {
  for (size_t j = 0; j < experts.size(); ++j)
    experts[j] = static_cast<int32_t>((layer * 3 + token_id * 5 + static_cast<int64_t>(j * j)) % 7);
}

TEST(GivenRouting, FollowsLayerAndTokenIdentity) {
  GivenRouting routing(mixed, {7, 3, true});
  const std::vector<int64_t> token_ids{40, 2, 1000003, 2, 0};
  const auto got = choose(routing, {4, token_ids}, 3, at::rand({5, 7}));
  std::vector<int32_t> want(15);
  for (size_t t = 0; t < 5; ++t) mixed(4, token_ids[t], std::span(want).subspan(t * 3, 3));
  EXPECT_EQ(got.ids, want);
  EXPECT_EQ(got.counts, counts_of(want, 7));
}

TEST(GivenRouting, CountsOnMetaWhatItCountsOnTheCpu) {
  GivenRouting routing(mixed, {7, 3, true});
  const std::vector<int64_t> token_ids{40, 2, 1000003, 2, 0};
  const auto meta = at::TensorOptions().device(at::kMeta);
  const auto counts = routing.choose({4, token_ids}, at::empty({5, 3}, meta.dtype(at::kInt)),
                                     at::empty({5, 7}, meta), {}, at::empty({7}, meta.dtype(at::kLong)));
  EXPECT_EQ(counts, choose(routing, {4, token_ids}, 3, at::rand({5, 7})).counts);
  EXPECT_EQ(choose(routing, {4, {}}, 3, at::rand({0, 7})).counts, std::vector<int64_t>(7, 0));
}

TEST(GivenRouting, NamesTheTokenWhoseExpertDoesNotExist) {
  const std::vector<int64_t> token_ids{11, 12};
  for (const int32_t bad : {-1, 7, 1 << 30}) {
    GivenRouting routing(
        [bad](int64_t, int64_t token, std::span<int32_t> experts) {
          std::fill(experts.begin(), experts.end(), 0);
          if (token == 12) experts.back() = bad;
        },
        {7, 3, true});
    try {
      choose(routing, {4, token_ids}, 3, at::rand({2, 7}));
      ADD_FAILURE() << "expert " << bad << " passed";
    } catch (const ValueError& error) {
      const std::string message = error.what();
      for (const auto& part : {"token 12", "layer 4", "of 7"})
        EXPECT_NE(message.find(part), std::string::npos) << message;
      EXPECT_NE(message.find("expert " + std::to_string(bad)), std::string::npos) << message;
    }
  }
}

TEST(GivenRouting, NeedsAnIdentityForEveryToken) {
  GivenRouting routing(mixed, {7, 3, true});
  const std::vector<int64_t> token_ids{1, 2};
  EXPECT_THROW(choose(routing, {0, token_ids}, 3, at::rand({3, 7})), InternalError);
}

TEST(GivenRouting, BalancedDealsDistinctExpertsEvenly) {
  auto routing = balanced_routing({8, 3, true});
  std::vector<int64_t> token_ids(16);
  std::iota(token_ids.begin(), token_ids.end(), 5);
  const auto got = choose(routing, {2, token_ids}, 3, at::rand({16, 8}));
  EXPECT_EQ(got.counts, std::vector<int64_t>(8, 6));
  for (size_t t = 0; t < 16; ++t)
    for (size_t j = 0; j < 3; ++j) EXPECT_EQ(got.ids[t * 3 + j], (t + 5 + j) % 8);
}

}  // namespace
}  // namespace steppe::ops
