#include "steppe/kernels/clamp.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "steppe/base/error.h"
#include "steppe/kernels/compare_test.h"

namespace steppe::kernels {
namespace {

// Random values, both limits themselves, and what is not finite.
at::Tensor sample(int64_t n, double limit, at::ScalarType dtype) {
  auto x = at::randn({n});
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const std::vector<float> special = {
      static_cast<float>(limit), static_cast<float>(-limit), kInfinity, -kInfinity, std::nanf(""), -0.0F};
  for (size_t i = 0; i < special.size() && static_cast<int64_t>(i) < n; ++i) x[i] = special[i];
  return x.to(dtype);
}

bool same(const at::Tensor& a, const at::Tensor& b) {
  return at::equal(a.isnan(), b.isnan()) && at::equal(a.nan_to_num(), b.nan_to_num());
}

TEST(Clamp, ForwardAndBackwardAreTorchs) {
  at::manual_seed(4);
  for_numbers_of_threads([](int) {
    for (const auto dtype : {at::kFloat, at::kBFloat16}) {
      for (const int64_t n : {0, 1, 5, 33, 70001}) {
        constexpr double kLimit = 0.75;
        const auto x = sample(n, kLimit, dtype), given = at::randn({n}).to(dtype);
        const auto leaf = x.clone().requires_grad_();
        const auto want = at::clamp(leaf, -kLimit, kLimit);
        want.backward(given);
        const auto out = at::empty_like(x), dx = given.clone(), in_place = x.clone();
        EXPECT_EQ(num_allocations_in([&] {
                    clamp_forward(out, x, kLimit);
                    clamp_forward(in_place, in_place, kLimit);
                    clamp_backward(dx, x, kLimit);
                  }),
                  0);
        EXPECT_TRUE(same(out, want.detach()));
        EXPECT_TRUE(same(in_place, out));
        // A NaN's gradient is torch's own affair.
        EXPECT_TRUE(at::equal(dx.masked_fill(x.isnan(), 0), leaf.grad().masked_fill(x.isnan(), 0)));
      }
    }
  });
}

// A limit that bf16 rounds: the largest value kept is one that has a gradient.
TEST(Clamp, TheLimitIsOneOfTheDtypesValues) {
  const auto x = at::full({3}, 8.0).to(at::kBFloat16), out = at::empty_like(x), dx = at::ones_like(x);
  clamp_forward(out, x, 1.003);
  EXPECT_TRUE(out.eq(1.0).all().item<bool>());
  clamp_backward(dx, out, 1.003);
  EXPECT_TRUE(dx.eq(1.0).all().item<bool>());
}

TEST(Clamp, MistakesAreNamed) {
  const auto x = at::zeros({4}), meta = at::empty({4}, at::TensorOptions(at::kMeta));
  clamp_forward(meta, meta, 1);
  clamp_backward(meta, meta, 1);
  EXPECT_THROW(clamp_forward(x, x, 0), ValueError);
  EXPECT_THROW(clamp_forward(x, x, std::nan("")), ValueError);
  EXPECT_THROW(clamp_forward(at::zeros({5}), x, 1), ValueError);
  EXPECT_THROW(clamp_backward(x.to(at::kBFloat16), x, 1), ValueError);
  EXPECT_THROW(clamp_backward(at::zeros({8}).slice(0, 0, 8, 2), x, 1), ValueError);
}

}  // namespace
}  // namespace steppe::kernels
