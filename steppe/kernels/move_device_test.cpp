// Kernels that move, add or update element by element: these are the same bits everywhere.
#include <cmath>

#include "steppe/kernels/adamw.h"
#include "steppe/kernels/device_test.h"
#include "steppe/kernels/embedding.h"
#include "steppe/kernels/permute.h"
#include "steppe/kernels/pointwise.h"

namespace steppe::kernels {
namespace {

using MoveDevice = DeviceTest;
const std::vector<int64_t> kSizes = {0, 1, 7, 4096, 100'003};

at::Tensor random(at::IntArrayRef sizes, at::ScalarType dtype) {
  return at::randn(sizes).to(dtype);
}

TEST_F(MoveDevice, Pointwise) {
  for (const auto dtype : kDtypes)
    for (const int64_t n : kSizes) {
      const auto a = random({n}, dtype), b = random({n}, dtype);
      expect_device_agrees({at::zeros_like(a), a, b}, 0, [](const Tensors& t) { add(t[0], t[1], t[2]); });
      expect_device_agrees({a}, 0, [](const Tensors& t) { scale(t[0], 0.3); });
      expect_device_agrees({a, b}, 0, [](const Tensors& t) { add_to(t[0], t[1]); });
      expect_device_agrees({at::randn({n}), b}, 0, [](const Tensors& t) { add_to(t[0], t[1]); });
      expect_device_agrees({at::randn({n}), a, b, random({n}, dtype)}, 0, [](const Tensors& t) {
        add_parts_in_order(t[0], std::vector<at::Tensor>{t[1], t[2], t[3]});
      });
    }
}

TEST_F(MoveDevice, AddsBetweenStridedRows) {
  for (const auto dtype : kDtypes)
    for (const auto to : {dtype, at::kFloat}) {
      const auto heads_first = random({6, 50, 24}, to).narrow(2, 0, 17).transpose(0, 1);
      const auto tokens_first = random({50, 9, 17}, dtype).narrow(1, 2, 6);
      expect_device_agrees({heads_first, tokens_first}, 0, [](const Tensors& t) { add_to(t[0], t[1]); });
    }
}

// ATen's, which tests/cuda_on_cpu leaves out.
TEST_F(MoveDevice, FillsAndCasts) {
  for (const auto dtype : kDtypes)
    for (const int64_t n : kSizes) {
      const auto x = random({n}, dtype);
      expect_device_agrees({x}, 0, [](const Tensors& t) { fill_zero(t[0]); });
      expect_device_agrees({at::zeros({n}), x}, 0, [](const Tensors& t) { copy_cast(t[0], t[1]); });
      expect_device_agrees({at::zeros({n}, dtype), at::randn({n})}, 0,
                           [](const Tensors& t) { copy_cast(t[0], t[1]); });
    }
}

TEST_F(MoveDevice, SumsAndCounts) {
  for (const auto dtype : kDtypes)
    for (const int64_t n : kSizes) {
      auto x = random({n}, dtype);
      expect_device_agrees({at::ones({1}, at::kDouble), x}, 1e-6,
                           [](const Tensors& t) { add_sum_of_squares(t[0], t[1]); });
      if (n > 5) x[3] = INFINITY, x[5] = NAN;
      const auto count = at::ones({1}, at::kLong);
      const auto on_device = to_device(count);
      add_nonfinite_count(count, x);
      add_nonfinite_count(on_device, to_device(x));
      EXPECT_EQ(to_host(on_device).item<int64_t>(), count.item<int64_t>());
    }
}

TEST_F(MoveDevice, AdamW) {
  for (const auto moments : kDtypes)
    for (const auto gradient : kDtypes)
      for (const auto working : kDtypes)
        for (const int64_t n : kSizes) {
          const Tensors tensors = {at::randn({n}), random({n}, moments), random({n}, moments).abs(),
                                   random({n}, gradient), at::zeros({n}, working)};
          expect_device_agrees(tensors, 0, [](const Tensors& t) {
            for (int64_t step = 1; step <= 3; ++step)
              adamw({t[0], t[1], t[2], t[3], t[4]},
                    {.lr = 1e-2, .beta1 = 0.9, .weight_decay = 0.1, .grad_scale = 0.7, .step = step});
          });
        }
}

TEST_F(MoveDevice, Embedding) {
  for (const auto dtype : kDtypes)
    for (const auto& [rows, width] :
         std::vector<std::pair<int64_t, int64_t>>{{0, 24}, {1, 24}, {500, 24}, {60, 23}}) {
      const auto table = random({37, width}, dtype);
      const auto ids = at::randint(100, 137, {rows}, at::kInt);  // most are listed often
      expect_device_agrees({with_gaps(at::zeros({rows, width}, dtype)), table, ids}, 0,
                           [](const Tensors& t) { embedding_forward(t[0], t[1], t[2], 100); });
      expect_device_agrees({at::randn({37, width}), with_gaps(random({rows, width}, dtype)), ids}, 0,
                           [](const Tensors& t) { embedding_backward(t[0], t[1], t[2], 100); });
    }
}

struct Routes {
  at::Tensor ids;
  std::vector<int64_t> first_slot;
};

// Skewed: half of them to one expert; some experts get none.
Routes routes_of(int64_t tokens, int64_t k, int64_t experts) {
  auto ids = at::randint(0, experts / 2 + 1, {tokens, k}, at::kInt);
  ids.masked_fill_(at::rand({tokens, k}) < 0.5, static_cast<int>(experts / 2));
  const auto counts = ids.flatten().to(at::kLong).bincount({}, experts);
  std::vector<int64_t> first(experts, 0);
  for (int64_t e = 1; e < experts; ++e) first[e] = first[e - 1] + counts[e - 1].item<int64_t>();
  return {ids, first};
}

TEST_F(MoveDevice, Permute) {
  const int64_t k = 3;
  for (const auto& [tokens, width] :
       std::vector<std::pair<int64_t, int64_t>>{{0, 24}, {1, 24}, {700, 24}, {90, 23}})
    for (const auto dtype : kDtypes) {
      const int64_t routes = tokens * k;
      const auto [ids, first] = routes_of(tokens, k, 16);
      const auto slots = at::zeros({routes}, at::kInt), origins = at::zeros({routes}, at::kInt);
      expect_device_agrees({slots, origins, ids}, 0,
                           [&](const Tensors& t) { sort_routes(t[0], t[1], t[2], first); });
      sort_routes(slots, origins, ids, first);
      const auto x = with_gaps(random({tokens, width}, dtype)), rows = random({routes, width}, dtype);
      expect_device_agrees({at::zeros({routes, width}, dtype), x, origins}, 0,
                           [&](const Tensors& t) { gather_rows_of_routes(t[0], t[1], t[2], k); });
      expect_device_agrees({at::zeros({routes}, dtype), random({routes}, dtype), origins}, 0,
                           [&](const Tensors& t) { gather_values(t[0], t[1], t[2]); });
      if (tokens > 0)
        expect_device_agrees(
            {at::zeros({routes, 3}, dtype).select(1, 1), random({routes, 5}, dtype).select(1, 4), origins}, 0,
            [&](const Tensors& t) { gather_values(t[0], t[1], t[2]); });
      expect_device_agrees({at::zeros({routes}, at::kLong), at::randint(0, 99, {routes}, at::kLong), origins},
                           0, [&](const Tensors& t) { gather_values(t[0], t[1], t[2]); });
      for (const bool add : {false, true})
        for (const auto sum : {dtype, at::kFloat})
          expect_device_agrees({random({tokens, width}, sum), rows, slots}, 0,
                               [&](const Tensors& t) { combine_rows(t[0], t[1], t[2], k, add); });
    }
}

TEST_F(MoveDevice, RowBlocks) {
  const std::vector<RowBlock> blocks = {{0, 5, 3}, {3, 0, 0}, {4, 1, 2}, {7, 20, 1}};
  for (const auto dtype : kDtypes)
    expect_device_agrees({random({9, 24}, dtype), with_gaps(random({21, 24}, dtype))}, 0,
                         [&](const Tensors& t) { copy_row_blocks(t[0], t[1], blocks); });
  expect_device_agrees({at::zeros({9}, at::kInt), at::randint(0, 99, {21}, at::kInt)}, 0,
                       [&](const Tensors& t) { copy_row_blocks(t[0], t[1], blocks); });
}

}  // namespace
}  // namespace steppe::kernels
