#include "steppe/kernels/grouped_matmul.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "steppe/base/error.h"
#include "steppe/kernels/compare_test.h"
#include "steppe/kernels/grouped_matmul_backend.h"
#include "steppe/kernels/meta_device.h"

namespace steppe::kernels {
namespace {

const std::vector<std::vector<int64_t>> kRows = {{5}, {3, 0, 9, 1}, {0, 0, 7, 0}, {0, 0}, {16, 8, 24}};
constexpr at::ScalarType kDtypes[] = {at::kFloat, at::kBFloat16};

int64_t sum(const std::vector<int64_t>& rows) {
  return std::accumulate(rows.begin(), rows.end(), int64_t{0});
}

at::Tensor ends_of(const std::vector<int64_t>& rows) {
  return at::tensor(at::ArrayRef<int64_t>(rows)).cumsum(0).to(at::kInt);
}

// Of `length` products and the rounding of the result, of the largest Σ|a||b| there can be.
double bound(at::ScalarType dtype, int64_t length) {
  return static_cast<double>(length + 2) * 0x1p-24 + unit_roundoff(dtype);
}

// The matrices of a forward lie transposed, those of the rows' gradient do not.
std::vector<at::Tensor> matrices(int64_t groups, int64_t k, int64_t n, at::ScalarType dtype) {
  return {at::randn({groups, n, k}).to(dtype).transpose(1, 2), at::randn({groups, k, n}).to(dtype)};
}

// ATen's own grouped product, which on a CPU is another loop, takes what ours takes and gives the same.
TEST(GroupedMatmul, GivesWhatTheLibrarysGroupedProductGives) {
  at::manual_seed(1);
  constexpr int64_t k = 24, n = 16;
  for (const auto dtype : kDtypes)
    for (const auto& rows : kRows)
      for (const auto& b : matrices(static_cast<int64_t>(rows.size()), k, n, dtype)) {
        const auto a = at::randn({sum(rows), k}).to(dtype);
        const auto out = at::full({sum(rows), n}, 99, a.options());
        grouped_matmul(out, a, b, RowGroups(rows, a));
        if (sum(rows) == 0) continue;
        const auto want = at::_grouped_mm(a, b, ends_of(rows));
        EXPECT_LE(relative_error(out, want.to(at::kDouble), k), 2 * bound(dtype, k));
        for (const auto& x : {out, a, b}) EXPECT_TRUE(fits_grouped_kernel(x));
      }
}

TEST(GroupedMatmul, AgreesWithFp64AtAnyWidth) {
  at::manual_seed(2);
  for (const auto dtype : kDtypes)
    for (const auto& rows : kRows)
      for (const auto& b : matrices(static_cast<int64_t>(rows.size()), 13, 7, dtype)) {
        const auto wide = at::randn({sum(rows), 20}).to(dtype);
        const auto a = wide.narrow(1, 3, 13);
        const auto out = at::full({sum(rows), 7}, 99, a.options());
        grouped_matmul(out, a, b, RowGroups(rows, a));
        int64_t begin = 0;
        for (size_t g = 0; g < rows.size(); ++g) {
          const auto part = a.narrow(0, begin, rows[g]).to(at::kDouble);
          const auto want = part.mm(b[static_cast<int64_t>(g)].to(at::kDouble));
          EXPECT_LE(relative_error(out.narrow(0, begin, rows[g]), want, 13), bound(dtype, 13));
          begin += rows[g];
        }
      }
}

TEST(GroupedMatmul, AccumulatesInFp32WhatTheLibrarysGroupedProductGives) {
  at::manual_seed(3);
  constexpr int64_t m = 8, n = 16;
  for (const auto dtype : kDtypes)
    for (const auto& rows : kRows) {
      const auto groups = static_cast<int64_t>(rows.size());
      const auto a = at::randn({sum(rows), m}).to(dtype), b = at::randn({sum(rows), n}).to(dtype);
      const auto start = at::randn({groups, m, n});
      const auto accumulators = start.clone();
      const auto scratch = dtype == at::kFloat ? at::Tensor() : at::empty({m, n}, a.options());
      grouped_matmul_accumulate(accumulators, a, b, RowGroups(rows, a), scratch);
      for (int64_t g = 0; g < groups; ++g)
        if (rows[g] == 0) {
          EXPECT_TRUE(at::equal(accumulators[g], start[g]));
        }
      if (sum(rows) == 0) continue;
      const auto want = start.to(at::kDouble) + at::_grouped_mm(a.t(), b, ends_of(rows)).to(at::kDouble);
      const int64_t longest = *std::max_element(rows.begin(), rows.end());
      EXPECT_LE(relative_error(accumulators, want, static_cast<double>(longest)), 2 * bound(dtype, longest));
    }
}

// The library refuses views whose strides are not of 16 bytes; those take the loop.
TEST(GroupedMatmul, KnowsWhatTheLibrarysKernelTakes) {
  const std::vector<int64_t> rows = {3, 5};
  const auto ends = ends_of(rows);
  const auto taken = [&](const at::Tensor& a, const at::Tensor& b) {
    try {
      at::_grouped_mm(a, b, ends);
      return true;
    } catch (const c10::Error&) {
      return false;
    }
  };
  const auto values = [](at::IntArrayRef sizes) { return at::ones(sizes, at::kBFloat16); };
  const auto b_of = [&](int64_t k) { return values({2, 16, k}).transpose(1, 2); };
  const auto wide = values({8, 32});
  for (const auto& a :
       {values({8, 24}), values({8, 20}), wide.narrow(1, 8, 16), values({8, 20}).narrow(1, 0, 16),
        values({16, 8}).t(), values({16, 12}).narrow(1, 0, 8).t()})
    EXPECT_EQ(fits_grouped_kernel(a), taken(a, values({2, a.size(1), 16}))) << a.sizes() << a.strides();
  for (const auto& b : {b_of(24), b_of(20), values({2, 24, 12}), values({2, 24, 8})})
    EXPECT_EQ(fits_grouped_kernel(b), taken(values({8, 32}).narrow(1, 0, b.size(1)), b)) << b.strides();
}

TEST(RowGroups, ADeviceIsToldTheEndsWhereItMultipliesGroupsAtOnce) {
  const auto bf16 = at::empty({12, 8}, at::TensorOptions().device(at::kMeta).dtype(at::kBFloat16));
  const auto fp32 = at::empty({12, 8}, at::TensorOptions().device(at::kMeta));
  EXPECT_FALSE(multiplies_groups_at_once(bf16));
  EXPECT_FALSE(RowGroups({5, 7}, bf16).ends().defined());
  EXPECT_FALSE(RowGroups({5, 7}, at::empty({12, 8}, at::kBFloat16)).ends().defined());
  const MetaStandsFor device(at::kCUDA);
  EXPECT_TRUE(multiplies_groups_at_once(bf16));
  EXPECT_FALSE(multiplies_groups_at_once(fp32));
  EXPECT_FALSE(RowGroups({5, 7}, fp32).ends().defined());
  EXPECT_FALSE(RowGroups({0, 12, 0}, bf16).ends().defined());  // one group is one product
  const RowGroups groups({5, 0, 7}, bf16);
  EXPECT_EQ(groups.total(), 12);
  ASSERT_TRUE(groups.ends().defined());
  EXPECT_EQ(groups.ends().sizes(), (std::vector<int64_t>{3}));
  EXPECT_EQ(groups.ends().scalar_type(), at::kInt);
  const auto out = at::empty({12, 4}, bf16.options()), b = at::empty({3, 8, 4}, bf16.options());
  EXPECT_EQ(num_allocations_in([&] { grouped_matmul(out, bf16, b, groups); }), 0);
}

TEST(GroupedMatmul, NamesWhatDoesNotFit) {
  const auto a = at::zeros({8, 4}), b = at::zeros({2, 4, 3}), out = at::zeros({8, 3});
  EXPECT_THROW(grouped_matmul(out, a, b, RowGroups({3, 4}, a)), ValueError);
  EXPECT_THROW(grouped_matmul(out, a, b, RowGroups({3, 4, 1}, a)), ValueError);
  EXPECT_THROW(grouped_matmul(out, a, at::zeros({2, 5, 3}), RowGroups({3, 5}, a)), ValueError);
  EXPECT_THROW(RowGroups({3, -1}, a), ValueError);
  EXPECT_THROW(grouped_matmul_accumulate(at::zeros({3, 4, 3}), a, out, RowGroups({3, 5}, a), {}), ValueError);
}

}  // namespace
}  // namespace steppe::kernels
