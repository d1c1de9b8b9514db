#include "steppe/kernels/embedding.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "steppe/base/error.h"

namespace steppe::kernels {
namespace {

TEST(Embedding, LooksUpRows) {
  at::manual_seed(1);
  for (const auto dtype : {at::kFloat, at::kBFloat16})
    for (const int64_t width : {1, 16, 100})
      for (const int64_t rows : {0, 1, 500}) {
        const auto table = at::randn({30, width}).to(dtype);
        const auto ids = at::randint(200, 230, {rows}, at::kInt);
        const auto out = at::empty({rows, width}, table.options());
        embedding_forward(out, table, ids, 200);
        EXPECT_TRUE(at::equal(out, table.index_select(0, ids - 200)));
      }
}

// fp32 sums in the order of the tokens, by a plain loop: the same bits, whatever the threads.
TEST(Embedding, AddsGradientsInOrder) {
  at::manual_seed(2);
  const int before = at::get_num_threads();
  for (const auto dtype : {at::kFloat, at::kBFloat16})
    for (const int64_t width : {1, 15, 48, 200})
      for (const int64_t rows : {0, 1, 700}) {
        const auto dy = at::randn({rows, width}).to(dtype);
        const auto ids = at::randint(50, 53, {rows}, at::kInt);  // each row many times
        const auto start = at::randn({6, width}), want = start.clone();
        for (int64_t i = 0; i < rows; ++i) want[ids[i].item<int>() - 49] += dy[i].to(at::kFloat);
        for (const int threads : {1, 2, 3}) {
          at::set_num_threads(threads);
          const auto grad = start.clone();
          embedding_backward(grad, dy, ids, 49);
          EXPECT_TRUE(at::equal(grad, want))
              << "width " << width << " rows " << rows << " threads " << threads;
        }
        at::set_num_threads(before);
      }
}

TEST(Embedding, StridedRows) {
  const auto table = at::randn({8, 20}), wide = at::zeros({5, 50}), grad = at::zeros({8, 20});
  const auto ids = at::tensor({7, 0, 3, 3, 1}, at::kInt);
  embedding_forward(wide.narrow(1, 10, 20), table, ids, 0);
  EXPECT_TRUE(at::equal(wide.narrow(1, 10, 20), table.index_select(0, ids)));
  EXPECT_EQ(wide.narrow(1, 0, 10).abs().max().item<float>(), 0);
  EXPECT_EQ(wide.narrow(1, 30, 20).abs().max().item<float>(), 0);
  embedding_backward(grad, wide.narrow(1, 10, 20), ids, 0);
  EXPECT_TRUE(at::equal(grad[3], table[3] + table[3]));
  EXPECT_TRUE(at::equal(grad[2], at::zeros({20})));
}

TEST(Embedding, MetaReturnsAndMistakesAreNamed) {
  const auto meta = at::TensorOptions().device(at::kMeta);
  const auto table = at::empty({8, 6}, meta), rows = at::empty({3, 6}, meta);
  const auto ids = at::empty({3}, meta.dtype(at::kInt));
  embedding_forward(rows, table, ids, 0);
  embedding_backward(table, rows, ids, 0);
  EXPECT_THROW(embedding_forward(rows, table.narrow(1, 0, 5), ids, 0), ValueError);
  EXPECT_THROW(embedding_forward(rows, table, ids.narrow(0, 0, 2), 0), ValueError);
  EXPECT_THROW(embedding_forward(rows.to(at::kBFloat16), table, ids, 0), ValueError);
  EXPECT_THROW(embedding_backward(table.to(at::kBFloat16), rows, ids, 0), ValueError);
}

}  // namespace
}  // namespace steppe::kernels
