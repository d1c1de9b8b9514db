#include <numeric>

#include "steppe/kernels/device_test.h"
#include "steppe/kernels/grouped_matmul.h"

namespace steppe::kernels {
namespace {

using GroupedMatmulDevice = DeviceTest;

// Widths of an expert, widths that the grouped kernel does not take, one group, none with rows.
TEST_F(GroupedMatmulDevice, AgreesWithTheLoop) {
  struct Case {
    std::vector<int64_t> rows;
    int64_t k, n;
  };
  std::vector<int64_t> many(300, 1);
  many[7] = 0, many[11] = 40;
  for (const auto dtype : kDtypes)
    for (const auto& c : std::vector<Case>{{{130, 0, 257, 1, 0}, 64, 96},
                                           {{0, 0, 31, 200}, 128, 320},
                                           {{5, 6}, 13, 7},
                                           {{0, 40}, 64, 64},
                                           {{0, 0}, 64, 64},
                                           {many, 32, 48}}) {
      const auto groups = static_cast<int64_t>(c.rows.size());
      const int64_t total = std::accumulate(c.rows.begin(), c.rows.end(), int64_t{0});
      const auto a = at::randn({total, c.k}).to(dtype);
      const auto out = at::zeros({total, c.n}, a.options());
      const double bound = device_bound(dtype) + 1e-5;
      expect_device_agrees({out, a, at::randn({groups, c.n, c.k}).to(dtype)}, bound, [&](const Tensors& t) {
        grouped_matmul(t[0], t[1], t[2].transpose(1, 2), RowGroups(c.rows, t[1]));
      });
      expect_device_agrees({out, a, at::randn({groups, c.k, c.n}).to(dtype)}, bound, [&](const Tensors& t) {
        grouped_matmul(t[0], t[1], t[2], RowGroups(c.rows, t[1]));
      });
      const auto scratch = dtype == at::kBFloat16 ? at::zeros({c.n, c.k}, dtype) : at::Tensor();
      expect_device_agrees({at::randn({groups, c.n, c.k}), at::randn({total, c.n}).to(dtype), a, scratch},
                           bound, [&](const Tensors& t) {
                             grouped_matmul_accumulate(t[0], t[1], t[2], RowGroups(c.rows, t[1]), t[3]);
                           });
    }
}

TEST_F(GroupedMatmulDevice, UsesTheGroupedKernelOnHopperAndBlackwell) {
  const auto x = at::zeros({8, 16}, at::TensorOptions().device(at::kCUDA).dtype(at::kBFloat16));
  const std::vector<int64_t> rows = {3, 0, 5};
  const RowGroups groups(rows, x);
  EXPECT_EQ(groups.ends().defined(), multiplies_groups_at_once(x));
  if (groups.ends().defined()) {
    EXPECT_TRUE(groups.ends().cpu().equal(at::tensor({3, 3, 8}, at::kInt)));
  }
}

}  // namespace
}  // namespace steppe::kernels
