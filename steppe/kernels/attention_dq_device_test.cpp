#include <cmath>

#include "steppe/kernels/attention_dq_backend.h"
#include "steppe/kernels/backend.h"
#include "steppe/kernels/device_test.h"

namespace steppe::kernels {
namespace {

using AttentionDqDevice = DeviceTest;

struct Case {
  std::vector<int64_t> bounds;
  int64_t hq, hk, d;
  bool packed = false;  // q, k and v side by side, as one projection leaves them
};

struct Inputs {
  at::Tensor q, k, v, dout;  // [S, heads, d] bf16
  at::Tensor out, lse, dq;   // of the oracle: bf16, fp32, fp64
};

// In fp64, document by document, by the definition.
Inputs make_inputs(const Case& c) {
  const int64_t n = c.bounds.back();
  const auto bf16 = [&](int64_t heads) { return at::randn({n, heads, c.d}).to(at::kBFloat16); };
  Inputs x;
  const auto all = bf16(c.hq + 2 * c.hk);
  const auto part = [&](int64_t first, int64_t heads) {
    return c.packed ? all.narrow(1, first, heads) : all.narrow(1, first, heads).contiguous();
  };
  x.q = part(0, c.hq), x.k = part(c.hq, c.hk), x.v = part(c.hq + c.hk, c.hk), x.dout = bf16(c.hq);
  const auto real = at::TensorOptions(at::kDouble);
  auto out = at::zeros({n, c.hq, c.d}, real), lse = at::zeros({c.hq, n}, real);
  x.dq = at::zeros({n, c.hq, c.d}, real);
  const double scale = 1 / std::sqrt(static_cast<double>(c.d));
  for (size_t i = 1; i < c.bounds.size(); ++i) {
    const int64_t begin = c.bounds[i - 1], length = c.bounds[i] - begin;
    for (int64_t h = 0; h < c.hq; ++h) {
      const auto rows = [&](const at::Tensor& t, int64_t head) {
        return t.narrow(0, begin, length).select(1, head).to(at::kDouble);
      };
      const int64_t key_head = h / (c.hq / c.hk);
      const auto q = rows(x.q, h), k = rows(x.k, key_head), v = rows(x.v, key_head), dout = rows(x.dout, h);
      const auto hidden = at::ones({length, length}, real).triu(1).to(at::kBool);
      const auto scores = q.mm(k.t()).mul(scale).masked_fill(hidden, -INFINITY);
      const auto weights = scores.softmax(-1), o = weights.mm(v);
      const auto grad_scores = weights * (dout.mm(v.t()) - (dout * o).sum(-1, true));
      lse.select(0, h).narrow(0, begin, length).copy_(scores.logsumexp({-1}));
      out.narrow(0, begin, length).select(1, h).copy_(o);
      x.dq.narrow(0, begin, length).select(1, h).copy_(grad_scores.mm(k).mul(scale));
    }
  }
  x.out = out.to(at::kBFloat16), x.lse = lse.to(at::kFloat);
  return x;
}

HeadRows rows_of(const at::Tensor& x) {
  return {x.const_data_ptr(), x.stride(0), x.stride(1)};
}

// On the device; the tensors are dq, q, k, v, out, dout, lse, bounds.
void run_kernel(const Tensors& t) {
  const auto size = [](const at::Tensor& x, int64_t dim) { return static_cast<int>(x.size(dim)); };
  cuda::attention_dq({.dq = t[0].mutable_data_ptr(),
                      .q = rows_of(t[1]),
                      .k = rows_of(t[2]),
                      .v = rows_of(t[3]),
                      .out = rows_of(t[4]),
                      .dout = rows_of(t[5]),
                      .lse = t[6].const_data_ptr<float>(),
                      .bounds = t[7].const_data_ptr<int32_t>(),
                      .num_documents = size(t[7], 0) - 1,
                      .tokens = size(t[1], 0),
                      .heads = size(t[1], 1),
                      .key_heads = size(t[2], 1),
                      .head_dim = size(t[1], 2),
                      .scale = 1 / std::sqrt(static_cast<float>(t[1].size(2)))},
                     current_cuda_stream(t[1]));
}

TEST_F(AttentionDqDevice, AgreesWithTheDefinitionAndRepeatsItsBits) {
  const std::vector<int64_t> short_documents = {0, 1, 3, 10, 26, 27, 60, 64, 65, 90};
  for (const auto& c : std::vector<Case>{{{0, 1}, 1, 1, 16},
                                         {{0, 5, 70}, 4, 2, 64, true},
                                         {{0, 200}, 2, 1, 64},
                                         {short_documents, 2, 2, 128, true},
                                         {{0, 17, 150}, 3, 1, 80},
                                         {{0, 40, 70}, 1, 1, 18, true},  // words that 16 bytes do not fit
                                         {{0, 3, 100}, 1, 1, 256}}) {
    const auto x = make_inputs(c);
    const std::vector<int32_t> bounds(c.bounds.begin(), c.bounds.end());
    const Tensors tensors = {at::full(x.q.sizes(), NAN, at::kBFloat16),
                             x.q,
                             x.k,
                             x.v,
                             x.out,
                             x.dout,
                             x.lse,
                             at::tensor(bounds, at::kInt)};
    const auto got = run_on_device(tensors, run_kernel);
    // Gradients of scores, and the result, are rounded to bf16.
    EXPECT_LE(device_error(got[0], x.dq), 3 * unit_roundoff(at::kBFloat16))
        << c.bounds.back() << " tokens, head dim " << c.d;
    for (int run = 0; run < 3; ++run)
      EXPECT_TRUE(same_bits(run_on_device(tensors, run_kernel)[0], got[0])) << "run " << run;
  }
}

}  // namespace
}  // namespace steppe::kernels
