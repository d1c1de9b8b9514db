#include "steppe/kernels/matmul.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <vector>

#include "steppe/base/error.h"
#include "steppe/kernels/compare_test.h"

namespace steppe::kernels {
namespace {

// The layouts a step hands over: plain, transposed, columns of a wider tensor, rows of a taller one.
std::vector<at::Tensor> layouts(int64_t rows, int64_t columns, at::ScalarType dtype) {
  return {
      at::randn({rows, columns}).to(dtype),
      at::randn({columns, rows}).to(dtype).t(),
      at::randn({rows, columns + 7}).to(dtype).narrow(1, 3, columns),
      at::randn({columns + 5, rows + 2}).to(dtype).narrow(0, 4, columns).narrow(1, 1, rows).t(),
  };
}

struct Sizes {
  int64_t m, k, n;
};
const std::vector<Sizes> kSizes = {{1, 1, 1}, {5, 7, 3}, {33, 64, 17}, {1, 40, 9}, {9, 40, 1}, {12, 1, 10}};

// Rounding of k products and of the result, in units of Σ|a||b|.
double bound(at::ScalarType dtype, int64_t k) {
  return static_cast<double>(k + 2) * 0x1p-24 + unit_roundoff(dtype);
}

double size_of(const at::Tensor& a, const at::Tensor& b) {
  return a.to(at::kDouble).abs().mm(b.to(at::kDouble).abs()).max().item<double>();
}

TEST(Matmul, AgreesWithFp64InEveryLayout) {
  at::manual_seed(1);
  for (const auto dtype : {at::kFloat, at::kBFloat16})
    for (const auto [m, k, n] : kSizes)
      for (const auto& a : layouts(m, k, dtype))
        for (const auto& b : layouts(k, n, dtype)) {
          const auto want = a.to(at::kDouble).mm(b.to(at::kDouble));
          const auto wide = at::full({m, n + 4}, 3.0, a.options());
          for (const auto& out : {at::empty({m, n}, a.options()), wide.narrow(1, 2, n)}) {
            matmul(out, a, b);
            ASSERT_LE(relative_error(out, want, size_of(a, b)), bound(dtype, k));
            matmul_add(out, a, b);
            ASSERT_LE(relative_error(out, want * 2, size_of(a, b)), 2 * bound(dtype, k));
          }
          ASSERT_TRUE(wide.narrow(1, 0, 2).eq(3).all().item<bool>());
          ASSERT_TRUE(wide.narrow(1, n + 2, 2).eq(3).all().item<bool>());
        }
}

TEST(Matmul, AccumulatesInFp32) {
  at::manual_seed(2);
  for (const auto dtype : {at::kFloat, at::kBFloat16})
    for (const auto [m, k, n] : kSizes)
      for (const auto& a : layouts(m, k, dtype)) {
        const auto b = at::randn({k, n}).to(dtype);
        const auto start = at::randn({m, n});
        const auto accumulator = start.clone();
        const auto scratch = dtype == at::kFloat ? at::Tensor() : at::empty({m, n}, at::kBFloat16);
        matmul_accumulate(accumulator, a, b, scratch);
        const auto want = start.to(at::kDouble) + a.to(at::kDouble).mm(b.to(at::kDouble));
        ASSERT_LE(relative_error(accumulator, want, size_of(a, b)), bound(dtype, k));
      }
}

TEST(Matmul, AllocatesNothing) {
  for (const auto& a : layouts(64, 48, at::kFloat))
    for (const auto& b : layouts(48, 80, at::kFloat))
      for (const auto& out : layouts(64, 80, at::kFloat)) {
        EXPECT_EQ(num_allocations_in([&] { matmul(out, a, b); }), 0)
            << out.strides() << a.strides() << b.strides();
        EXPECT_EQ(num_allocations_in([&] { matmul_add(out, a, b); }), 0);
        EXPECT_EQ(num_allocations_in([&] { matmul_accumulate(out, a, b, {}); }), 0);
      }
  EXPECT_EQ(num_allocations_in([] { at::randn({64, 64}); }), 1);  // the count counts
}

TEST(Matmul, EmptySizes) {
  const auto out = at::full({4, 3}, 5.0);
  matmul_add(out, at::empty({4, 0}), at::empty({0, 3}));
  matmul_accumulate(out, at::empty({4, 0}), at::empty({0, 3}), {});
  EXPECT_TRUE(out.eq(5).all().item<bool>());
  matmul(out, at::empty({4, 0}), at::empty({0, 3}));
  EXPECT_TRUE(out.eq(0).all().item<bool>());
  matmul(at::empty({0, 3}), at::empty({0, 6}), at::empty({6, 3}));
  matmul_add(at::empty({4, 0}), at::empty({4, 6}), at::empty({6, 0}));
  matmul_accumulate(at::empty({0, 0}), at::empty({0, 6}), at::empty({6, 0}), {});
}

TEST(Matmul, ReturnsOnMeta) {
  const auto meta = at::TensorOptions().device(at::kMeta);
  const auto a = at::empty({4, 6}, meta), b = at::empty({6, 3}, meta), out = at::empty({4, 3}, meta);
  EXPECT_EQ(num_allocations_in([&] {
              matmul(out, a, b);
              matmul_add(out, a, b);
              matmul_accumulate(out, a, b, {});
            }),
            0);
}

TEST(Matmul, NamesMistakes) {
  const auto a = at::zeros({4, 6}), b = at::zeros({6, 3}), out = at::zeros({4, 3});
  EXPECT_THROW(matmul(out, a, at::zeros({5, 3})), ValueError);
  EXPECT_THROW(matmul(at::zeros({3, 4}), a, b), ValueError);
  EXPECT_THROW(matmul(out, a, b.to(at::kBFloat16)), ValueError);
  EXPECT_THROW(matmul(out.to(at::kBFloat16), a, b), ValueError);
  EXPECT_THROW(matmul(out, a.unsqueeze(0), b), ValueError);
  EXPECT_THROW(matmul(out, at::zeros({8, 12}).slice(0, 0, 8, 2).slice(1, 0, 12, 2), b), ValueError);
  EXPECT_THROW(matmul_accumulate(out, a.to(at::kBFloat16), b.to(at::kBFloat16), {}), ValueError);
  EXPECT_THROW(matmul_accumulate(out.to(at::kBFloat16), a, b, {}), ValueError);
  EXPECT_THROW(matmul(at::zeros({4, 3}, at::TensorOptions().device(at::kMeta)), a, b), ValueError);
}

}  // namespace
}  // namespace steppe::kernels
