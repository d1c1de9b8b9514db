#include "steppe/kernels/adamw.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "steppe/base/error.h"
#include "steppe/kernels/compare_test.h"

namespace steppe::kernels {
namespace {

constexpr AdamWStep kStep = {
    .lr = 3e-3, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1, .grad_scale = 0.75, .step = 1};

AdamWTensors fresh(int64_t n, at::ScalarType moments = at::kFloat) {
  return {.master = at::randn({n}),
          .m = at::zeros({n}, moments),
          .v = at::zeros({n}, moments),
          .grad = at::Tensor(),
          .working = at::Tensor()};
}

AdamWTensors copy(const AdamWTensors& t) {
  const auto clone = [](const at::Tensor& x) { return x.defined() ? x.clone() : x; };
  return {clone(t.master), clone(t.m), clone(t.v), clone(t.grad), clone(t.working)};
}

void expect_same_bits(const AdamWTensors& a, const AdamWTensors& b) {
  EXPECT_TRUE(at::equal(a.master, b.master));
  EXPECT_TRUE(at::equal(a.m, b.m));
  EXPECT_TRUE(at::equal(a.v, b.v));
  if (a.working.defined()) {
    EXPECT_TRUE(at::equal(a.working, b.working));
  }
}

// The sequence of the contract, one element at a time.
void plain_update(const AdamWTensors& t, const AdamWStep& s) {
  const auto rounded = [](double x) { return static_cast<float>(x); };
  const float rsqrt_bias2 = rounded(1 / std::sqrt(1 - std::pow(s.beta2, s.step)));
  const float minus_step = rounded(-s.lr / (1 - std::pow(s.beta1, s.step)));
  const float minus_decay = rounded(-s.lr * s.weight_decay);
  const auto grad = t.grad.to(at::kFloat), wide_m = t.m.to(at::kFloat), wide_v = t.v.to(at::kFloat);
  for (int64_t i = 0; i < t.master.numel(); ++i) {
    float& w = t.master.data_ptr<float>()[i];
    float& m = wide_m.data_ptr<float>()[i];
    float& v = wide_v.data_ptr<float>()[i];
    const float g = grad.data_ptr<float>()[i] * rounded(s.grad_scale);
    m = std::fma(rounded(s.beta1), m, rounded(1 - s.beta1) * g);
    v = std::fma(rounded(s.beta2), v, rounded(1 - s.beta2) * g * g);
    const float scaled = std::sqrt(v) * rsqrt_bias2;
    w = std::fma(minus_decay, w, w);
    w = std::fma(minus_step, m / (scaled + rounded(s.eps)), w);
  }
  t.m.copy_(wide_m);
  t.v.copy_(wide_v);
  if (t.working.defined()) t.working.copy_(t.master);
}

TEST(AdamW, IsTheWrittenSequenceBitForBit) {
  at::manual_seed(1);
  const at::ScalarType dtypes[] = {at::kFloat, at::kBFloat16};
  for (const auto moments_dtype : dtypes)
    for (const auto grad_dtype : dtypes)
      for (const auto working_dtype : dtypes)
        for (const int64_t n : {0, 1, 15, 16, 1003}) {
          auto ours = fresh(n, moments_dtype);
          ours.working = at::empty({n}, working_dtype);
          auto plain = copy(ours);
          for (AdamWStep step = kStep; step.step <= 5; ++step.step) {
            ours.grad = plain.grad = (at::randn({n}) * std::pow(10.0, -2.0 * step.step)).to(grad_dtype);
            EXPECT_EQ(num_allocations_in([&] { adamw(ours, step); }), 0);
            plain_update(plain, step);
            expect_same_bits(ours, plain);
          }
        }
}

TEST(AdamW, SameBitsForAnySplitAndThreads) {
  at::manual_seed(2);
  constexpr int64_t kSize = 100'003;
  auto start = fresh(kSize);
  start.grad = at::randn({kSize});
  start.working = at::empty({kSize}, at::kBFloat16);
  const auto whole = copy(start);
  adamw(whole, kStep);
  for_numbers_of_threads([&](int) {
    for (const int64_t bucket : {int64_t{1009}, int64_t{40'000}, kSize}) {
      const auto parts = copy(start);
      for (int64_t i = 0; i < kSize; i += bucket) {
        const auto cut = [&](const at::Tensor& x) { return x.narrow(0, i, std::min(bucket, kSize - i)); };
        adamw({cut(parts.master), cut(parts.m), cut(parts.v), cut(parts.grad), cut(parts.working)}, kStep);
      }
      expect_same_bits(parts, whole);
    }
  });
}

// ‖weights − fp64 weights‖ after 100 steps, ours and PyTorch's fused AdamW.
TEST(AdamW, ErrorIsNoLargerThanPyTorchsFused) {
  at::manual_seed(3);
  constexpr int64_t kSize = 20'000;
  AdamWStep step = kStep;
  step.grad_scale = 1;
  auto ours = fresh(kSize);
  auto theirs = copy(ours);
  auto exact = copy(ours);
  for (at::Tensor* x : {&exact.master, &exact.m, &exact.v}) *x = x->to(at::kDouble);
  const auto count = at::zeros({});
  for (; step.step <= 100; ++step.step) {
    const auto grad = at::randn({kSize}) * 1e-3 + exact.master.to(at::kFloat) * 1e-3;
    ours.grad = grad;
    adamw(ours, step);
    count.fill_(step.step);
    at::_fused_adamw_({theirs.master}, {grad}, {theirs.m}, {theirs.v}, {}, {count}, step.lr, step.beta1,
                      step.beta2, step.weight_decay, step.eps, /*amsgrad=*/false, /*maximize=*/false);
    const auto g = grad.to(at::kDouble);
    const double t = static_cast<double>(step.step);
    exact.m.mul_(step.beta1).add_(g, 1 - step.beta1);
    exact.v.mul_(step.beta2).addcmul_(g, g, 1 - step.beta2);
    exact.master.mul_(1 - step.lr * step.weight_decay)
        .addcdiv_(exact.m, (exact.v / (1 - std::pow(step.beta2, t))).sqrt() + step.eps,
                  -step.lr / (1 - std::pow(step.beta1, t)));
  }
  const auto error = [&](const at::Tensor& x) {
    return (x.to(at::kDouble) - exact.master).norm().item<double>();
  };
  EXPECT_GT(error(ours.master), 0);
  EXPECT_LE(error(ours.master), error(theirs.master));
  EXPECT_LE(relative_error(ours.master, exact.master), 100 * unit_roundoff(at::kFloat));
}

TEST(AdamW, WorkingWeightsMayBeTheMasters) {
  at::manual_seed(4);
  auto tensors = fresh(100);
  tensors.grad = at::randn({100});
  const auto apart = copy(tensors);
  tensors.working = tensors.master;
  adamw(tensors, kStep);
  adamw(apart, kStep);
  EXPECT_TRUE(at::equal(tensors.master, apart.master));
}

TEST(AdamW, MetaReturnsAndMistakesAreNamed) {
  const auto m = at::empty({4}, at::TensorOptions().device(at::kMeta));
  adamw({m, m, m, m, m}, kStep);

  auto good = fresh(4);
  good.grad = at::zeros({4});
  const auto fails = [&](auto change) {
    auto tensors = copy(good);
    auto step = kStep;
    change(tensors, step);
    EXPECT_THROW(adamw(tensors, step), ValueError);
  };
  fails([](auto& t, auto&) { t.m = at::zeros({5}); });
  fails([](auto& t, auto&) { t.v = t.v.to(at::kBFloat16); });
  fails([](auto& t, auto&) { t.grad = at::zeros({8}).slice(0, 0, 8, 2); });
  fails([](auto& t, auto&) { t.grad = at::Tensor(); });
  fails([](auto& t, auto&) { t.working = at::zeros({4}, at::kHalf); });
  fails([](auto&, auto& s) { s.step = 0; });
  fails([](auto&, auto& s) { s.beta1 = 1; });
  fails([](auto&, auto& s) { s.beta2 = -0.1; });
  fails([](auto&, auto& s) { s.eps = -1; });
}

}  // namespace
}  // namespace steppe::kernels
