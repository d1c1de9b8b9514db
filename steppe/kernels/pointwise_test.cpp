#include "steppe/kernels/pointwise.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "steppe/base/error.h"
#include "steppe/kernels/compare_test.h"

namespace steppe::kernels {
namespace {

const std::vector<int64_t> kLengths = {0, 1, 15, 16, 33, 1000, 70001};

TEST(Pointwise, AddAndScaleAreRoundedOnce) {
  at::manual_seed(1);
  for (const auto dtype : {at::kFloat, at::kBFloat16})
    for (const int64_t n : kLengths) {
      const auto a = at::randn({n}).to(dtype), b = at::randn({n}).to(dtype), out = at::empty({n}, dtype);
      add(out, a, b);
      EXPECT_TRUE(at::equal(out, (a.to(at::kFloat) + b.to(at::kFloat)).to(dtype)));
      const auto in_place = a.clone();
      add(in_place, in_place, b);
      EXPECT_TRUE(at::equal(in_place, out));
      scale(in_place, 1.0 / 3);
      EXPECT_TRUE(at::equal(in_place, (out.to(at::kFloat) * static_cast<float>(1.0 / 3)).to(dtype)));
      fill_zero(out);
      EXPECT_TRUE(at::equal(out, at::zeros({n}, dtype)));
    }
}

TEST(Pointwise, AddToTakesRowsInAnyLayout) {
  at::manual_seed(2);
  for (const auto to : {at::kFloat, at::kBFloat16})
    for (const auto from : {at::kFloat, at::kBFloat16}) {
      if (to == at::kBFloat16 && from == at::kFloat) continue;
      const auto random = [&](at::IntArrayRef sizes) { return at::randn(sizes).to(from); };
      const std::vector<at::Tensor> inputs = {
          random({6, 5, 33}), random({6, 5, 40}).narrow(2, 1, 33), random({5, 6, 33}).transpose(0, 1),
          random({6, 9, 40}).narrow(1, 3, 5).narrow(2, 7, 33), random({6, 1, 33}).expand({6, 5, 33})};
      for (const auto& x : inputs) {
        const auto start = at::randn({6, 5, 33}).to(to);
        const auto want = (start.to(at::kFloat) + x.to(at::kFloat)).to(to);
        const auto accumulator = start.clone();
        EXPECT_EQ(num_allocations_in([&] { add_to(accumulator, x); }), 0);
        EXPECT_TRUE(at::equal(accumulator, want));
        const auto wide = at::zeros({6, 5, 50}, to), strided = wide.narrow(2, 9, 33);
        strided.copy_(start);
        add_to(strided, x);
        EXPECT_TRUE(at::equal(strided, want));
        EXPECT_TRUE(wide.narrow(2, 0, 9).eq(0).all().item<bool>());
        EXPECT_TRUE(wide.narrow(2, 42, 8).eq(0).all().item<bool>());
      }
    }
  const auto long_rows = at::randn({2, 300000}), sum = at::randn({2, 300000}), want = sum + long_rows;
  add_to(sum, long_rows);
  EXPECT_TRUE(at::equal(sum, want));
  add_to(at::zeros({3, 0}), at::zeros({3, 0}));
  add_to(at::zeros({}), at::ones({}));
}

TEST(Pointwise, CopyCast) {
  at::manual_seed(3);
  const std::vector<at::ScalarType> dtypes = {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble};
  for (const auto from : dtypes)
    for (const auto to : dtypes) {
      const auto in = at::randn({7, 50}).to(from).narrow(1, 3, 40);
      const auto out = at::zeros({7, 64}, to).narrow(1, 8, 40);
      EXPECT_EQ(num_allocations_in([&] { copy_cast(out, in); }), 0);
      EXPECT_TRUE(at::equal(out, in.to(to)));
    }
  EXPECT_EQ(num_allocations_in([] {
              const auto x = at::randn({90, 4, 80});
              copy_cast(x.select(1, 0), x.select(1, 3));
            }),
            1);  // x itself
}

TEST(Pointwise, AddsPartsInTheirOrder) {
  at::manual_seed(4);
  for (const auto dtype : {at::kFloat, at::kBFloat16})
    for (const int64_t n : kLengths) {
      std::vector<at::Tensor> parts;
      for (int p = 0; p < 7; ++p) parts.push_back((at::randn({n}) * (p == 3 ? 1e6 : 1.0)).to(dtype));
      const auto start = at::randn({n}), want = start.clone();
      for (const auto& part : parts) want.add_(part.to(at::kFloat));
      for_numbers_of_threads([&](int threads) {
        const auto accumulator = start.clone();
        EXPECT_EQ(num_allocations_in([&] { add_parts_in_order(accumulator, parts); }), 0);
        EXPECT_TRUE(at::equal(accumulator, want)) << "n " << n << " threads " << threads;
      });
    }
  add_parts_in_order(at::zeros({3}), {});
}

TEST(Pointwise, SumOfSquaresIsExactToFp64AndTheSameForAnyThreads) {
  at::manual_seed(5);
  std::vector<int64_t> lengths = kLengths;
  lengths.push_back(8'500'003);  // more elements than the most blocks of the least size hold
  for (const auto dtype : {at::kFloat, at::kBFloat16})
    for (const int64_t n : lengths) {
      const auto x = at::randn({n}).to(dtype);
      const double want = 2 + x.to(at::kDouble).square().sum().item<double>();
      std::vector<double> sums;
      for_numbers_of_threads([&](int) {
        const auto out = at::full({1}, 2.0, at::kDouble);
        EXPECT_EQ(num_allocations_in([&] { add_sum_of_squares(out, x); }), 0);
        sums.push_back(out.item<double>());
      });
      EXPECT_NEAR(sums[0] / want, 1, 1e-12) << n;
      EXPECT_EQ(sums[0], sums[1]);
      EXPECT_EQ(sums[0], sums[2]);
    }
}

TEST(Pointwise, CountsNonfiniteValues) {
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    const auto x = at::full({70001}, 3e38).to(dtype);
    const float infinity = std::numeric_limits<float>::infinity();
    x[0] = infinity;
    x[39999] = -infinity;
    x[70000] = std::numeric_limits<float>::quiet_NaN();
    for_numbers_of_threads([&](int) {
      const auto out = at::full({1}, 10, at::kLong);
      EXPECT_EQ(num_allocations_in([&] { add_nonfinite_count(out, x); }), 0);
      EXPECT_EQ(out.item<int64_t>(), 13);
    });
  }
}

TEST(Pointwise, MetaReturnsAndMistakesAreNamed) {
  const auto meta = at::TensorOptions().device(at::kMeta);
  const auto x = at::empty({4, 6}, meta), one = at::empty({1}, meta.dtype(at::kDouble));
  fill_zero(x), add(x, x, x), scale(x, 2), add_to(x, x), copy_cast(x, x), add_sum_of_squares(one, x);
  add_parts_in_order(x, std::vector{x, x}), add_nonfinite_count(at::empty({1}, meta.dtype(at::kLong)), x);

  const auto a = at::zeros({4, 6});
  EXPECT_THROW(add(a, a, at::zeros({6, 4})), ValueError);
  EXPECT_THROW(add(a, a, a.to(at::kBFloat16)), ValueError);
  EXPECT_THROW(add(a, a, at::zeros({6, 4}).t()), ValueError);
  EXPECT_THROW(scale(at::zeros({3}, at::kLong), 2), ValueError);
  EXPECT_THROW(add_to(a.to(at::kBFloat16), a), ValueError);
  EXPECT_THROW(add_to(a, at::zeros({6, 4}).t()), ValueError);
  EXPECT_THROW(add_to(a, x), ValueError);
  EXPECT_THROW(copy_cast(a, at::zeros({4, 6}, at::kInt)), ValueError);
  EXPECT_THROW(add_parts_in_order(a, std::vector{a, at::zeros({23})}), ValueError);
  EXPECT_THROW(add_sum_of_squares(at::zeros({1}), a), ValueError);
  EXPECT_THROW(add_nonfinite_count(at::zeros({2}, at::kLong), a), ValueError);
  const auto many = at::zeros({2, 3, 4, 5, 6});
  EXPECT_THROW(add_to(many, at::zeros({4, 3, 5, 2, 6}).permute({3, 1, 0, 2, 4})), ValueError);
}

}  // namespace
}  // namespace steppe::kernels
