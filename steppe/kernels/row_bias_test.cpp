#include "steppe/kernels/row_bias.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <vector>

#include "steppe/base/error.h"
#include "steppe/kernels/compare_test.h"

namespace steppe::kernels {
namespace {

struct Case {
  at::Tensor rows, bias, weight;  // rows within wider ones
};

Case random_case(int64_t rows, int64_t columns, at::ScalarType dtype, bool weighted) {
  return {at::randn({rows, columns + 5}).to(dtype).narrow(1, 2, columns), at::randn({columns}).to(dtype),
          weighted ? at::rand({rows}) : at::Tensor()};
}

at::Tensor fp64(const at::Tensor& x) {
  return x.to(at::kDouble);
}

TEST(RowBias, AgreesWithFp64) {
  at::manual_seed(1);
  for (const auto dtype : {at::kFloat, at::kBFloat16})
    for (const bool weighted : {false, true})
      for (const auto& [num_rows, columns] :
           std::vector<std::pair<int64_t, int64_t>>{{0, 8}, {1, 1}, {7, 19}, {300, 96}, {2, 1000}}) {
        SCOPED_TRACE(::testing::Message() << num_rows << "x" << columns << ", weighted " << weighted);
        const auto [rows, bias, weight] = random_case(num_rows, columns, dtype, weighted);
        const auto w = weighted ? fp64(weight) : at::ones({num_rows}, at::kDouble);
        const double sums_bound = static_cast<double>(num_rows + 1) * 0x1p-24,
                     dots_bound = static_cast<double>(columns + 1) * 0x1p-24;

        const auto grad = at::full({columns}, 0.5f), dots = at::full({num_rows}, 0.25f);
        const auto weighted_rows = fp64(rows) * w.unsqueeze(1);
        const auto want_dots = fp64(rows).mv(fp64(bias)) + 0.25;
        EXPECT_EQ(num_allocations_in([&, rows = rows, weight = weight, bias = bias] {
                    add_column_sums(grad, rows, weight);
                    add_row_dots(dots, rows, bias);
                  }),
                  0);
        EXPECT_LE(relative_error(grad, weighted_rows.sum(0) + 0.5,
                                 num_rows > 0 ? weighted_rows.abs().sum(0).max().item<double>() : 0),
                  sums_bound);
        EXPECT_LE(
            relative_error(dots, want_dots,
                           num_rows > 0 ? fp64(rows).abs().mv(fp64(bias).abs()).max().item<double>() : 0),
            dots_bound);

        const auto want = fp64(rows) + w.unsqueeze(1) * fp64(bias);
        EXPECT_EQ(num_allocations_in(
                      [&, rows = rows, weight = weight, bias = bias] { add_row_bias(rows, bias, weight); }),
                  0);
        EXPECT_LE(relative_error(rows, want), 2 * unit_roundoff(dtype));
      }
}

TEST(RowBias, SameBitsForAnyThreads) {
  at::manual_seed(2);
  const auto original = random_case(501, 1030, at::kFloat, true);
  std::vector<at::Tensor> first;
  for_numbers_of_threads([&](int) {
    const auto rows = original.rows.clone(), grad = at::zeros({1030}), dots = at::zeros({501});
    add_row_bias(rows, original.bias, original.weight);
    add_column_sums(grad, rows, original.weight);
    add_row_dots(dots, rows, original.bias);
    const std::vector<at::Tensor> results = {rows, grad, dots};
    if (first.empty()) first = results;
    for (size_t i = 0; i < results.size(); ++i) EXPECT_TRUE(at::equal(results[i], first[i]));
  });
}

TEST(RowBias, MetaReturnsAndMistakesAreNamed) {
  const auto meta = at::TensorOptions().device(at::kMeta);
  const auto rows_on_meta = at::empty({4, 6}, meta), vector = at::empty({6}, meta);
  add_row_bias(rows_on_meta, vector, at::empty({4}, meta));
  add_column_sums(vector, rows_on_meta, {});
  add_row_dots(at::empty({4}, meta), rows_on_meta, vector);

  const auto rows = at::zeros({4, 6}), bias = at::zeros({6});
  EXPECT_THROW(add_row_bias(rows, at::zeros({5}), {}), ValueError);
  EXPECT_THROW(add_row_bias(rows, bias.to(at::kBFloat16), {}), ValueError);
  EXPECT_THROW(add_row_bias(rows, bias, at::zeros({6})), ValueError);
  EXPECT_THROW(add_row_bias(rows.t(), at::zeros({4}), {}), ValueError);
  EXPECT_THROW(add_column_sums(bias.to(at::kDouble), rows, {}), ValueError);
  EXPECT_THROW(add_row_dots(bias, rows, bias), ValueError);
}

}  // namespace
}  // namespace steppe::kernels
