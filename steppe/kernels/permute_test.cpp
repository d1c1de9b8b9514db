#include "steppe/kernels/permute.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "steppe/base/error.h"

namespace steppe::kernels {
namespace {

struct Sorted {
  at::Tensor slot_of_route, route_of_slot;
};

std::vector<int64_t> first_slots(const at::Tensor& ids, int64_t experts) {
  std::vector<int64_t> first(experts, 0);
  for (int64_t e = 1; e < experts; ++e) first[e] = first[e - 1] + ids.eq(e - 1).sum().item<int64_t>();
  return first;
}

Sorted sorted(const at::Tensor& ids, int64_t experts) {
  Sorted s{at::full({ids.numel()}, -7, at::kInt), at::full({ids.numel()}, -7, at::kInt)};
  sort_routes(s.slot_of_route, s.route_of_slot, ids, first_slots(ids, experts));
  return s;
}

void expect_stable_sort(const at::Tensor& ids, int64_t experts) {
  const Sorted s = sorted(ids, experts);
  std::vector<int> want(ids.numel());
  std::iota(want.begin(), want.end(), 0);
  const auto flat = ids.flatten();
  const auto* e = flat.const_data_ptr<int32_t>();
  std::stable_sort(want.begin(), want.end(), [&](int a, int b) { return e[a] < e[b]; });
  for (size_t slot = 0; slot < want.size(); ++slot) {
    ASSERT_EQ(s.route_of_slot[slot].item<int>(), want[slot]);
    ASSERT_EQ(s.slot_of_route[want[slot]].item<int>(), static_cast<int>(slot));
  }
}

TEST(Permute, SortsRoutesStably) {
  at::manual_seed(1);
  expect_stable_sort(at::randint(0, 16, {100, 4}, at::kInt), 16);
  expect_stable_sort(at::randint(3, 5, {50, 2}, at::kInt), 9);  // most experts empty
  expect_stable_sort(at::full({40, 8}, 2, at::kInt), 4);        // every token to one, listed eight times
  expect_stable_sort(at::full({40, 1}, 3, at::kInt), 4);        // to the last
  expect_stable_sort(at::empty({0, 4}, at::kInt), 8);
}

TEST(Permute, RoutesWithoutASlotAreNamed) {
  const auto ids = at::tensor({0, 1, 1, 2}, at::kInt).view({2, 2});
  const auto a = at::empty({4}, at::kInt), b = at::empty({4}, at::kInt);
  const auto sort = [&](std::vector<int64_t> first) { sort_routes(a, b, ids, first); };
  sort({0, 1, 3});
  EXPECT_THROW(sort({0, 1}), ValueError);     // expert 2 does not exist
  EXPECT_THROW(sort({0, 1, 2}), ValueError);  // expert 1 has two routes, not one
  EXPECT_THROW(sort({0, 2, 4}), ValueError);
  EXPECT_THROW(sort({0, 3, 1}), ValueError);
  EXPECT_THROW(sort({0, 1, 5}), ValueError);
}

at::Tensor random_rows(int64_t n, int64_t width, at::ScalarType dtype) {
  return at::randn({n, width}).to(dtype);
}

TEST(Permute, GathersRowsAndValues) {
  at::manual_seed(2);
  for (const auto dtype : {at::kFloat, at::kBFloat16})
    for (const int64_t width : {1, 17, 64, 200})
      for (const int64_t tokens : {0, 1, 90}) {
        const int64_t k = 3;
        const auto x = random_rows(tokens, width, dtype);
        const Sorted s = sorted(at::randint(0, 5, {tokens, k}, at::kInt), 5);
        const auto out = at::empty({tokens * k, width}, x.options());
        gather_rows_of_routes(out, x, s.route_of_slot, k);
        EXPECT_TRUE(at::equal(out, x.index_select(0, at::floor_divide(s.route_of_slot, k))));
        const auto values = random_rows(tokens * k, 1, dtype).flatten();
        const auto there = at::empty_like(values), back = at::empty_like(values);
        gather_values(there, values, s.route_of_slot);
        EXPECT_TRUE(at::equal(there, values.index_select(0, s.route_of_slot)));
        gather_values(back, there, s.slot_of_route);
        EXPECT_TRUE(at::equal(back, values));
        // Into a column of wider rows, and out of one.
        const auto wide = at::zeros({tokens * k, 5}, values.options());
        gather_values(wide.select(1, 3), values, s.route_of_slot);
        EXPECT_TRUE(at::equal(wide.select(1, 3), there));
        EXPECT_TRUE(wide.narrow(1, 0, 3).eq(0).all().item<bool>());
        gather_values(back.zero_(), wide.select(1, 3), s.slot_of_route);
        EXPECT_TRUE(at::equal(back, values));
      }
}

// y + the sum of k rows in fp32, ascending, rounded once: the same bits by plain loops.
at::Tensor combined(const at::Tensor& y, const at::Tensor& rows, const at::Tensor& slots, int64_t k,
                    bool add) {
  auto sum = at::zeros({y.size(0), y.size(1)});
  for (int64_t t = 0; t < y.size(0); ++t)
    for (int64_t j = 0; j < k; ++j) sum[t] += rows[slots[t * k + j].item<int>()].to(at::kFloat);
  return (add ? y.to(at::kFloat) + sum : sum).to(y.scalar_type());
}

TEST(Permute, CombinesRowsInOrder) {
  at::manual_seed(3);
  using Types = std::pair<at::ScalarType, at::ScalarType>;
  for (const auto& [y_type, rows_type] :
       {Types{at::kFloat, at::kFloat}, {at::kFloat, at::kBFloat16}, {at::kBFloat16, at::kBFloat16}})
    for (const int64_t width : {1, 16, 30, 64, 131})
      for (const int64_t k : {1, 2, 8})
        for (const bool add : {false, true}) {
          const int64_t tokens = 9;
          const auto y = random_rows(tokens, width, y_type), rows = random_rows(tokens * k, width, rows_type);
          const Sorted s = sorted(at::randint(0, 4, {tokens, k}, at::kInt), 4);
          const auto want = combined(y, rows, s.slot_of_route, k, add);
          combine_rows(y, rows, s.slot_of_route, k, add);
          EXPECT_TRUE(at::equal(y, want)) << "width " << width << " k " << k << " add " << add;
        }
}

TEST(Permute, CombineIsTheTransposeOfGather) {
  at::manual_seed(4);
  const int64_t tokens = 40, k = 4, width = 24;
  const auto x = at::randn({tokens, width}), w = at::randn({tokens * k, width});
  const Sorted s = sorted(at::randint(0, 6, {tokens, k}, at::kInt), 6);
  const auto gathered = at::empty({tokens * k, width}), back = at::empty({tokens, width});
  gather_rows_of_routes(gathered, x, s.route_of_slot, k);
  combine_rows(back, w, s.slot_of_route, k, false);
  const auto dot = [](const at::Tensor& a, const at::Tensor& b) {
    return (a.to(at::kDouble) * b.to(at::kDouble)).sum().item<double>();
  };
  EXPECT_NEAR(dot(gathered, w), dot(x, back), 1e-4);
}

TEST(Permute, StridedRowsAndNoTokens) {
  const auto wide = at::randn({10, 50}), before = wide.clone();
  const auto y = wide.narrow(1, 20, 20), rows = at::randn({10, 60}).narrow(1, 7, 20);
  const auto slots = at::arange(9, -1, -1, at::kInt);
  combine_rows(y, rows, slots, 1, true);
  EXPECT_TRUE(at::equal(y, before.narrow(1, 20, 20) + rows.flip(0)));
  EXPECT_TRUE(at::equal(wide.narrow(1, 0, 20), before.narrow(1, 0, 20)));
  combine_rows(at::empty({0, 20}), rows, at::empty({0}, at::kInt), 2, true);
}

TEST(Permute, CopiesRowBlocks) {
  at::manual_seed(5);
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kInt}) {
    const auto in = at::randint(0, 1000, {20, 7}, at::kFloat).to(dtype);
    const auto out = at::zeros({25, 7}, in.options()), want = at::zeros({25, 7}, in.options());
    const std::vector<RowBlock> blocks = {{3, 0, 5}, {0, 9, 0}, {15, 5, 10}, {0, 19, 1}};
    for (const auto& b : blocks) want.narrow(0, b.to, b.rows).copy_(in.narrow(0, b.from, b.rows));
    copy_row_blocks(out, in, blocks);
    EXPECT_TRUE(at::equal(out, want));
    const auto wide = at::zeros({25, 9}, in.options());
    copy_row_blocks(wide.narrow(1, 1, 7), in, blocks);
    EXPECT_TRUE(at::equal(wide.narrow(1, 1, 7), want));
    EXPECT_TRUE(at::equal(wide.select(1, 0), at::zeros({25}, in.options())));
    const auto vector = at::zeros({25}, in.options());
    copy_row_blocks(vector, in.select(1, 2), blocks);
    EXPECT_TRUE(at::equal(vector, want.select(1, 2)));
  }
  copy_row_blocks(at::empty({0, 4}), at::empty({0, 4}), {});
}

TEST(Permute, MovesMoreThanOneThreadWillTake) {
  at::manual_seed(6);
  const int64_t tokens = 3000, k = 2, width = 96;
  const auto x = at::randn({tokens, width});
  const Sorted s = sorted(at::randint(0, 7, {tokens, k}, at::kInt), 7);
  const auto rows = at::empty({tokens * k, width}), y = at::empty({tokens, width}),
             moved = at::empty_like(rows);
  gather_rows_of_routes(rows, x, s.route_of_slot, k);
  const std::vector<RowBlock> blocks = {{0, 3001, 2999}, {2999, 0, 3000}, {5999, 3000, 1}};
  copy_row_blocks(moved, rows, blocks);
  EXPECT_TRUE(at::equal(moved, at::cat({rows.narrow(0, 3001, 2999), rows.narrow(0, 0, 3001)})));
  combine_rows(y, rows, s.slot_of_route, k, false);
  EXPECT_TRUE(at::equal(y, x + x));
}

TEST(Permute, MetaReturnsAndMistakesAreNamed) {
  const auto meta = at::TensorOptions().device(at::kMeta);
  const auto x = at::empty({4, 6}, meta), rows = at::empty({8, 6}, meta);
  const auto routes = at::empty({8}, meta.dtype(at::kInt));
  const std::vector<int64_t> first = {0, 8};
  sort_routes(routes, routes, routes.view({4, 2}), first);
  gather_rows_of_routes(rows, x, routes, 2);
  gather_values(at::empty({8}, meta), at::empty({8}, meta), routes);
  combine_rows(x, rows, routes, 2, true);
  const std::vector<RowBlock> blocks = {{0, 4, 4}}, outside = {{0, 5, 4}};
  copy_row_blocks(x, rows, blocks);

  EXPECT_THROW(copy_row_blocks(x, rows, outside), ValueError);
  EXPECT_THROW(gather_rows_of_routes(rows, x, routes.narrow(0, 0, 7), 2), ValueError);
  EXPECT_THROW(gather_values(rows, rows, routes), ValueError);
  EXPECT_THROW(combine_rows(x, rows, routes, 3, true), ValueError);
  EXPECT_THROW(combine_rows(x.to(at::kBFloat16), rows, routes, 2, true), ValueError);
  EXPECT_THROW(combine_rows(x, rows.narrow(1, 0, 5), routes, 2, true), ValueError);
}

}  // namespace
}  // namespace steppe::kernels
