#include "steppe/kernels/rms_norm.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <vector>

#include "steppe/base/error.h"
#include "steppe/kernels/compare_test.h"

namespace steppe::kernels {
namespace {

constexpr double kEps = 1e-6;

at::Tensor oracle(const at::Tensor& x, const at::Tensor& weight) {
  return x * (x.square().mean(-1, true) + kEps).rsqrt() * weight;
}

struct Shape {
  int64_t rows, columns;
};
const std::vector<Shape> kShapes = {{0, 8},    {1, 1},     {3, 7},     {5, 16},
                                    {200, 64}, {2500, 24}, {130, 259}, {2, 5000}};

// Rows inside a wider tensor.
at::Tensor strided(int64_t rows, int64_t columns, at::ScalarType dtype) {
  return at::randn({rows, columns + 9}).to(dtype).narrow(1, 4, columns);
}

TEST(RmsNorm, ForwardAgreesWithFp64) {
  at::manual_seed(1);
  for (const auto dtype : {at::kFloat, at::kBFloat16})
    for (const auto [rows, columns] : kShapes)
      for (const auto& x : {at::randn({rows, columns}).to(dtype), strided(rows, columns, dtype)}) {
        const auto weight = (at::randn({columns}) + 1).to(dtype);
        const auto y = strided(rows, columns, dtype), inv_rms = at::empty({rows});
        EXPECT_EQ(num_allocations_in([&] { rms_norm_forward(y, inv_rms, x, weight, kEps); }), 0);
        const auto x64 = x.to(at::kDouble);
        EXPECT_LE(relative_error(inv_rms, (x64.square().mean(-1) + kEps).rsqrt()), 1e-6);
        EXPECT_LE(relative_error(y, oracle(x64, weight.to(at::kDouble))), 4e-7 + unit_roundoff(dtype));
        const auto in_place = x.clone();
        rms_norm_forward(in_place, inv_rms, in_place, weight, kEps);
        EXPECT_TRUE(at::equal(in_place, y));
      }
}

struct Gradients {
  at::Tensor dx, weight;
};

Gradients autograd(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& weight) {
  const auto x64 = x.to(at::kDouble).clone().set_requires_grad(true);
  const auto weight64 = weight.to(at::kDouble).clone().set_requires_grad(true);
  (oracle(x64, weight64) * dy.to(at::kDouble)).sum().backward();
  return {x64.grad(), weight64.grad()};
}

TEST(RmsNorm, BackwardAgreesWithAutograd) {
  at::manual_seed(2);
  for (const auto dtype : {at::kFloat, at::kBFloat16})
    for (const auto [rows, columns] : kShapes) {
      const auto x = strided(rows, columns, dtype), dy = strided(rows, columns, dtype);
      const auto weight = (at::randn({columns}) + 1).to(dtype), inv_rms = at::empty({rows});
      rms_norm_forward(at::empty({rows, columns}, dtype), inv_rms, x, weight, kEps);
      const auto [want_dx, want_weight] = autograd(dy, x, weight);
      const double bound = 2e-6 + unit_roundoff(dtype);

      const auto dx = strided(rows, columns, dtype), grad_weight = at::ones({columns});
      EXPECT_EQ(num_allocations_in([&] {
                  rms_norm_backward({.dx = dx,
                                     .grad_weight = grad_weight,
                                     .dy = dy,
                                     .x = x,
                                     .weight = weight,
                                     .inv_rms = inv_rms});
                }),
                0);
      EXPECT_LE(relative_error(dx, want_dx, 1), bound) << rows << "×" << columns;
      EXPECT_LE(relative_error(grad_weight, want_weight + 1), 2e-6) << rows << "×" << columns;

      const auto sum = at::randn({rows, columns}).to(dtype), before = sum.clone();
      rms_norm_backward({.dx = sum,
                         .grad_weight = {},
                         .dy = dy,
                         .x = x,
                         .weight = weight,
                         .inv_rms = inv_rms,
                         .add_to_dx = true});
      EXPECT_LE(relative_error(sum, before.to(at::kDouble) + want_dx, 1), 2 * bound);

      const auto in_place = dy.clone(), again = at::ones({columns});
      rms_norm_backward({.dx = in_place,
                         .grad_weight = again,
                         .dy = in_place,
                         .x = x,
                         .weight = weight,
                         .inv_rms = inv_rms});
      EXPECT_TRUE(at::equal(in_place, dx));
      EXPECT_TRUE(at::equal(again, grad_weight));
    }
}

TEST(RmsNorm, SameBitsForAnyThreads) {
  at::manual_seed(3);
  for (const auto [rows, columns] : std::vector<Shape>{{4000, 64}, {701, 256}, {100, 3000}}) {
    const auto x = at::randn({rows, columns}), dy = at::randn({rows, columns}), weight = at::randn({columns});
    at::Tensor first_weight, first_dx;
    for_numbers_of_threads([&](int) {
      const auto dx = at::empty_like(x), inv_rms = at::empty({rows}), grad_weight = at::zeros({columns});
      rms_norm_forward(dx, inv_rms, x, weight, kEps);
      rms_norm_backward(
          {.dx = dx, .grad_weight = grad_weight, .dy = dy, .x = x, .weight = weight, .inv_rms = inv_rms});
      if (!first_dx.defined()) first_dx = dx, first_weight = grad_weight;
      EXPECT_TRUE(at::equal(dx, first_dx));
      EXPECT_TRUE(at::equal(grad_weight, first_weight));
    });
  }
}

TEST(RmsNorm, MetaReturnsAndMistakesAreNamed) {
  const auto meta = at::TensorOptions().device(at::kMeta);
  const auto m = at::empty({4, 6}, meta), m6 = at::empty({6}, meta), m4 = at::empty({4}, meta);
  rms_norm_forward(m, m4, m, m6, kEps);
  rms_norm_backward({.dx = m, .grad_weight = m6, .dy = m, .x = m, .weight = m6, .inv_rms = m4});

  const auto x = at::zeros({4, 6}), weight = at::zeros({6}), inv_rms = at::zeros({4});
  EXPECT_THROW(rms_norm_forward(x, inv_rms, x, inv_rms, kEps), ValueError);
  EXPECT_THROW(rms_norm_forward(x, weight, x, weight, kEps), ValueError);
  EXPECT_THROW(rms_norm_forward(x, inv_rms, x.to(at::kBFloat16), weight, kEps), ValueError);
  EXPECT_THROW(rms_norm_forward(at::zeros({6, 4}).t(), inv_rms, x, weight, kEps), ValueError);
  EXPECT_THROW(rms_norm_forward(x, inv_rms, x, weight, -1), ValueError);
  EXPECT_THROW(rms_norm_backward({.dx = x,
                                  .grad_weight = weight.to(at::kBFloat16),
                                  .dy = x,
                                  .x = x,
                                  .weight = weight,
                                  .inv_rms = inv_rms}),
               ValueError);
  EXPECT_THROW(rms_norm_backward({.dx = x,
                                  .grad_weight = weight,
                                  .dy = x,
                                  .x = x.clone(),
                                  .weight = weight,
                                  .inv_rms = inv_rms,
                                  .add_to_dx = true}),
               ValueError);
  const auto huge = at::zeros({1, 20000});
  EXPECT_THROW(rms_norm_forward(huge, at::zeros({1}), huge, huge[0], kEps), ValueError);
}

}  // namespace
}  // namespace steppe::kernels
