#include <cmath>

#include "steppe/kernels/attention.h"
#include "steppe/kernels/device_test.h"
#include "steppe/kernels/matmul.h"

namespace steppe::kernels {
namespace {

using AttentionDevice = DeviceTest;

struct Case {
  std::vector<int64_t> bounds;
  int64_t hq, hk, d;
};

TEST_F(AttentionDevice, ForwardAndBackward) {
  for (const auto dtype : kDtypes)
    for (const auto& c : std::vector<Case>{{{0, 1}, 1, 1, 16},
                                           {{0, 1, 2, 3}, 4, 2, 64},
                                           {{0, 5, 5, 70}, 4, 2, 64},
                                           {{0, 300}, 8, 1, 64},
                                           {{0, 17, 130, 260}, 6, 2, 128}}) {
      const int64_t n = c.bounds.back();
      const double scale = 1 / std::sqrt(static_cast<double>(c.d));
      const auto like = [&](int64_t heads) { return at::randn({n, heads, c.d}).to(dtype); };
      const auto q = like(c.hq), k = like(c.hk), v = like(c.hk), dout = like(c.hq);
      const auto run = [&](const Tensors& t) {
        const auto output = attention_forward(t[0], t[1], t[2], c.bounds, scale);
        const auto grads = attention_backward(t[3], t[0], t[1], t[2], output, c.bounds, scale);
        return Tensors{output.out_Shd, output.lse_hS, grads.dq_Shd, grads.dk_Shd, grads.dv_Shd};
      };
      const auto want = run({q, k, v, dout});
      const auto got = run({q.cuda(), k.cuda(), v.cuda(), dout.cuda()});
      // Weights and gradients of scores pass through the dtype on both.
      const double bound = dtype == at::kBFloat16 ? 3e-2 : 1e-5;
      for (size_t i = 0; i < want.size(); ++i)
        EXPECT_LE(device_error(got[i].cpu(), want[i]), bound) << "result " << i << " of " << n << " tokens";
    }
}

// By atomics, dq of so many keys has other bits at nearly every run.
TEST_F(AttentionDevice, ADeterministicBackwardRepeatsItsBits) {
  const std::vector<int64_t> bounds = {0, 3000, 3100, 4096};
  for (const auto dtype : kDtypes) {
    const auto like = [&](int64_t heads) {
      return at::randn({bounds.back(), heads, 128}).to(at::TensorOptions(at::kCUDA).dtype(dtype));
    };
    const auto q = like(4), k = like(2), v = like(2), dout = like(4);
    const auto output = attention_forward(q, k, v, bounds, 0.1);
    const auto run = [&](bool deterministic) {
      const auto grads = attention_backward(dout, q, k, v, output, bounds, 0.1, deterministic);
      return Tensors{grads.dq_Shd.cpu(), grads.dk_Shd.cpu(), grads.dv_Shd.cpu()};
    };
    const auto first = run(true), other = run(false);
    EXPECT_LE(device_error(first[0], other[0]), dtype == at::kBFloat16 ? 1e-2 : 1e-5);
    for (int again = 0; again < 4; ++again) {
      const auto next = run(true);
      for (size_t i = 0; i < first.size(); ++i) EXPECT_TRUE(same_bits(next[i], first[i])) << "gradient " << i;
    }
  }
}

TEST_F(AttentionDevice, NoTokens) {
  const auto none = at::zeros({0, 2, 16}, at::TensorOptions().device(at::kCUDA));
  const std::vector<int64_t> bounds = {0};
  EXPECT_EQ(attention_forward(none, none, none, bounds, 0.25).out_Shd.size(0), 0);
}

TEST_F(AttentionDevice, Products) {
  for (const auto dtype : kDtypes) {
    const auto a = at::randn({33, 130}).to(dtype), b = at::randn({71, 130}).to(dtype);
    const double bound = device_bound(dtype) + 1e-5;
    expect_device_agrees({at::zeros({33, 71}, dtype), a, b}, bound,
                         [](const Tensors& t) { matmul(t[0], t[1], t[2].t()); });
    expect_device_agrees({at::randn({33, 71}).to(dtype), a, b}, bound,
                         [](const Tensors& t) { matmul_add(t[0], t[1], t[2].t()); });
    const auto scratch = dtype == at::kBFloat16 ? at::zeros({33, 71}, dtype) : at::Tensor();
    expect_device_agrees({at::randn({33, 71}), a, b, scratch}, bound,
                         [](const Tensors& t) { matmul_accumulate(t[0], t[1], t[2].t(), t[3]); });
  }
}

}  // namespace
}  // namespace steppe::kernels
