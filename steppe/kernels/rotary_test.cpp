#include "steppe/kernels/rotary.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "steppe/base/error.h"
#include "steppe/kernels/compare_test.h"

namespace steppe::kernels {
namespace {

// x·cos + rotate_half(x)·sin, as the models' reference code writes it, in fp64.
at::Tensor oracle(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
  const auto c = at::cat({cos, cos}, 1).to(at::kDouble).unsqueeze(1);
  const auto s = at::cat({sin, sin}, 1).to(at::kDouble).unsqueeze(1);
  const auto halves = x.to(at::kDouble).chunk(2, 2);
  return x.to(at::kDouble) * c + at::cat({-halves[1], halves[0]}, 2) * s;
}

std::vector<float> frequencies(int64_t half) {
  std::vector<float> inverse;
  for (int64_t i = 0; i < half; ++i) inverse.push_back(static_cast<float>(std::pow(1e4, -double(i) / half)));
  return inverse;
}

TEST(Rotary, AgreesWithFp64AndRotatesBack) {
  at::manual_seed(1);
  for (const auto dtype : {at::kFloat, at::kBFloat16})
    for (const int64_t tokens : {0, 1, 70})
      for (const int64_t half : {1, 8, 19, 32}) {
        const auto angle = at::randn({tokens, half}).mul_(3);
        const auto cos = angle.cos(), sin = angle.sin();
        const std::vector<at::Tensor> inputs = {
            at::randn({tokens, 3, 2 * half}).to(dtype),
            at::randn({tokens, 5, 2 * half + 3}).to(dtype).narrow(1, 1, 3).narrow(2, 2, 2 * half),
            at::randn({3, tokens, 2 * half}).to(dtype).transpose(0, 1),
        };
        for (const auto& x : inputs) {
          const auto original = x.clone();
          const auto want = oracle(x, cos, sin);
          EXPECT_EQ(num_allocations_in([&] { rotary(x, cos, sin, false); }), 0);
          EXPECT_LE(relative_error(x, want), 2e-7 + unit_roundoff(dtype));
          const auto want_back = oracle(x, cos, -sin);
          rotary(x, cos, sin, true);
          EXPECT_LE(relative_error(x, want_back), 2e-7 + unit_roundoff(dtype));
          EXPECT_LE(relative_error(x, original.to(at::kDouble)), 1e-6 + 3 * unit_roundoff(dtype));
        }
      }
}

TEST(Rotary, TablesAreAccurateAtAMillionTokens) {
  const auto positions = at::tensor({0, 1, 7, 1000, 131071, 1048575}, at::kInt);
  for (const int64_t half : {1, 20, 64}) {
    const auto inverse = frequencies(half);
    const auto cos = at::empty({6, half}), sin = at::empty({6, half});
    EXPECT_EQ(num_allocations_in([&] { rotary_tables(cos, sin, positions, inverse, 0.7); }), 0);
    // The product is rounded to fp32, as in the models' reference code; its cosine is then exact.
    const auto angle = (positions.to(at::kFloat).unsqueeze(1) * at::tensor(inverse)).to(at::kDouble);
    EXPECT_LE(relative_error(cos, angle.cos() * 0.7), 2e-7);
    EXPECT_LE(relative_error(sin, angle.sin() * 0.7, 0.7), 2e-7);
  }
}

TEST(Rotary, MetaReturnsAndMistakesAreNamed) {
  const auto meta = at::TensorOptions().device(at::kMeta);
  const auto table = at::empty({4, 3}, meta);
  rotary(at::empty({4, 2, 6}, meta), table, table, false);
  rotary_tables(table, table, at::empty({4}, meta.dtype(at::kInt)), frequencies(3), 1);

  const auto x = at::zeros({4, 2, 6}), cos = at::zeros({4, 3});
  EXPECT_THROW(rotary(x, cos, at::zeros({4, 6}), false), ValueError);
  EXPECT_THROW(rotary(x, cos.to(at::kBFloat16), cos, false), ValueError);
  EXPECT_THROW(rotary(at::zeros({4, 2, 5}), cos, cos, false), ValueError);
  EXPECT_THROW(rotary(at::zeros({4, 6}), cos, cos, false), ValueError);
  EXPECT_THROW(rotary(at::zeros({4, 6, 2}).transpose(1, 2), cos, cos, false), ValueError);
  EXPECT_THROW(rotary_tables(cos, cos, at::zeros({4}, at::kLong), frequencies(3), 1), ValueError);
  EXPECT_THROW(rotary_tables(cos, cos, at::zeros({4}, at::kInt), frequencies(4), 1), ValueError);
  const auto wide = at::zeros({1, 600});
  EXPECT_THROW(rotary_tables(wide, wide, at::zeros({1}, at::kInt), frequencies(600), 1), ValueError);
}

}  // namespace
}  // namespace steppe::kernels
