#include "steppe/kernels/attention.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "steppe/base/error.h"
#include "steppe/memory/ledger.h"
#include "steppe/memory/scope.h"

namespace steppe::kernels {
namespace {

using Bounds = std::vector<int64_t>;

struct Case {
  Bounds bounds;
  int64_t hq = 1, hk = 1, d = 16;
  at::ScalarType dtype = at::kFloat;
  int64_t num_tokens() const { return bounds.back(); }
  double scale() const { return 1 / std::sqrt(static_cast<double>(d)); }
};

struct Inputs {
  at::Tensor q, k, v, dout;
};

Inputs random_inputs(const Case& c, uint64_t seed = 1) {
  at::manual_seed(seed);
  const auto options = at::TensorOptions().dtype(c.dtype);
  const int64_t n = c.num_tokens();
  return {at::randn({n, c.hq, c.d}, options), at::randn({n, c.hk, c.d}, options),
          at::randn({n, c.hk, c.d}, options), at::randn({n, c.hq, c.d}, options)};
}

struct Results {
  at::Tensor out, lse, dq, dk, dv;
};

Results run(const Case& c, const Inputs& x) {
  const AttentionOutput output = attention_forward(x.q, x.k, x.v, c.bounds, c.scale());
  const AttentionGradients grads = attention_backward(x.dout, x.q, x.k, x.v, output, c.bounds, c.scale());
  return {output.out_Shd, output.lse_hS, grads.dq_Shd, grads.dk_Shd, grads.dv_Shd};
}

// Scores, mask, softmax and their gradients in fp64, by autograd.
Results reference(const Case& c, const Inputs& x) {
  const int64_t n = c.num_tokens();
  auto mask = at::ones({n, n}, at::kBool);
  for (size_t i = 1; i < c.bounds.size(); ++i) {
    const int64_t begin = c.bounds[i - 1], size = c.bounds[i] - begin;
    mask.narrow(0, begin, size).narrow(1, begin, size).copy_(at::ones({size, size}, at::kBool).triu(1));
  }
  const auto leaf = [](const at::Tensor& t) { return t.to(at::kDouble).detach().requires_grad_(); };
  const auto q = leaf(x.q), k = leaf(x.k), v = leaf(x.v);
  const int64_t g = c.hq / c.hk;
  const auto scores = at::matmul(q.transpose(0, 1), k.repeat_interleave(g, 1).permute({1, 2, 0})) * c.scale();
  const auto masked = scores.masked_fill(mask, -INFINITY);
  const auto out = at::matmul(masked.softmax(-1), v.repeat_interleave(g, 1).transpose(0, 1)).transpose(0, 1);
  out.backward(x.dout.to(at::kDouble));
  return {out.detach(), masked.logsumexp(-1).detach(), q.grad(), k.grad(), v.grad()};
}

// Rounding of products and their sums, relative to the largest value.
constexpr double kTolerance = 2e-6;
// bf16 rounds operands and results once more; its log-sum-exp, in fp32, comes from a shorter exponential.
constexpr double kBf16Tolerance = 0.02, kBf16LseTolerance = 1e-4;

void expect_near(const at::Tensor& got, const at::Tensor& want, double tolerance, const char* name) {
  ASSERT_EQ(got.sizes(), want.sizes()) << name;
  if (got.numel() == 0) return;
  const double largest = std::max(1.0, want.abs().max().item<double>());
  EXPECT_LE((got.to(at::kDouble) - want).abs().max().item<double>(), tolerance * largest) << name;
}

void expect_matches_reference(const Case& c, const Inputs& x) {
  SCOPED_TRACE(testing::Message() << "S=" << c.num_tokens() << " documents=" << c.bounds.size() - 1 << " hq="
                                  << c.hq << " hk=" << c.hk << " d=" << c.d << " " << c10::toString(c.dtype));
  const Results got = run(c, x), want = reference(c, x);
  EXPECT_TRUE(got.out.is_contiguous() && got.dq.is_contiguous() && got.dk.is_contiguous() &&
              got.dv.is_contiguous());
  EXPECT_EQ(got.out.scalar_type(), c.dtype);
  const bool fp32 = c.dtype == at::kFloat;
  const double tolerance = fp32 ? kTolerance : kBf16Tolerance;
  expect_near(got.out, want.out, tolerance, "out");
  expect_near(got.lse, want.lse, fp32 ? kTolerance : kBf16LseTolerance, "lse");
  expect_near(got.dq, want.dq, tolerance, "dq");
  expect_near(got.dk, want.dk, tolerance, "dk");
  expect_near(got.dv, want.dv, tolerance, "dv");
}

TEST(Attention, MatchesAutogradInFp64) {
  const std::vector<std::pair<int64_t, int64_t>> heads = {{4, 4}, {4, 2}, {4, 1}, {8, 1}, {3, 3}};
  for (const auto& bounds : {Bounds{0, 77}, Bounds{0, 5, 6, 6, 39, 70}, Bounds{0, 0, 1, 1}})
    for (const auto& [hq, hk] : heads)
      for (const int64_t d : {16, 64, 128}) {
        const Case c{bounds, hq, hk, d};
        expect_matches_reference(c, random_inputs(c));
      }
}

TEST(Attention, LongDocumentsOfSeveralBlocks) {
  for (const auto& bounds : {Bounds{0, 231, 300}, Bounds{0, 13, 1100}}) {
    const Case c{bounds, 4, 2, 32};
    expect_matches_reference(c, random_inputs(c));
  }
}

TEST(Attention, Bf16) {
  for (const int64_t hk : {4, 2, 1}) {
    const Case c{{0, 33, 70}, 4, hk, 32, at::kBFloat16};
    expect_matches_reference(c, random_inputs(c));
  }
}

TEST(Attention, NoTokens) {
  for (const auto& bounds : {Bounds{0}, Bounds{0, 0}, Bounds{0, 0, 0}}) {
    const Case c{bounds, 4, 2, 16};
    const Results r = run(c, random_inputs(c));
    EXPECT_EQ(r.out.sizes(), (std::vector<int64_t>{0, 4, 16}));
    EXPECT_EQ(r.lse.sizes(), (std::vector<int64_t>{4, 0}));
    EXPECT_EQ(r.dk.sizes(), (std::vector<int64_t>{0, 2, 16}));
  }
}

// Operands that are slices of one projection, and an out-gradient with gaps between tokens.
TEST(Attention, StridedOperands) {
  const Case c{{0, 20, 61}, 4, 2, 16};
  at::manual_seed(3);
  const auto qkv = at::randn({61, 8, 16}), wide = at::randn({61, 5, 16});
  const Inputs x{qkv.narrow(1, 0, 4), qkv.narrow(1, 4, 2), qkv.narrow(1, 6, 2), wide.narrow(1, 1, 4)};
  expect_matches_reference(c, x);
  const Inputs copies{x.q.contiguous(), x.k.contiguous(), x.v.contiguous(), x.dout.contiguous()};
  const Results a = run(c, x), b = run(c, copies);
  EXPECT_TRUE(at::equal(a.out, b.out) && at::equal(a.dq, b.dq) && at::equal(a.dk, b.dk) &&
              at::equal(a.dv, b.dv));
}

TEST(Attention, OtherDocumentsKeepTheirBits) {
  const Case c{{0, 40, 41, 100, 130}, 4, 2, 16};
  const Inputs before = random_inputs(c);
  Inputs after{before.q.clone(), before.k.clone(), before.v.clone(), before.dout.clone()};
  for (const auto& t : {after.q, after.k, after.v, after.dout}) t[50].add_(1);
  const Results a = run(c, before), b = run(c, after);
  const auto outside = [](const at::Tensor& t) {
    return at::cat({t.narrow(0, 0, 41), t.narrow(0, 100, 30)});
  };
  EXPECT_TRUE(at::equal(outside(a.out), outside(b.out)));
  EXPECT_TRUE(at::equal(outside(a.lse.t()), outside(b.lse.t())));
  EXPECT_TRUE(at::equal(outside(a.dq), outside(b.dq)));
  EXPECT_TRUE(at::equal(outside(a.dk), outside(b.dk)));
  EXPECT_TRUE(at::equal(outside(a.dv), outside(b.dv)));
  EXPECT_FALSE(at::equal(a.out[60], b.out[60]));  // a later token of the document sees the change
  EXPECT_TRUE(at::equal(a.out[45], b.out[45]));   // an earlier one does not
}

struct Threads {
  explicit Threads(int n) : before(at::get_num_threads()) { at::set_num_threads(n); }
  ~Threads() { at::set_num_threads(before); }
  int before;
};

TEST(Attention, BitsDoNotDependOnThreads) {
  for (const int64_t hk : {1, 2, 8}) {
    const Case c{{0, 40, 300}, 8, hk, 16};
    const Inputs x = random_inputs(c);
    Results one, three;
    {
      const Threads threads(1);
      one = run(c, x);
    }
    {
      const Threads threads(3);
      three = run(c, x);
    }
    EXPECT_TRUE(at::equal(one.out, three.out) && at::equal(one.lse, three.lse) &&
                at::equal(one.dq, three.dq) && at::equal(one.dk, three.dk) && at::equal(one.dv, three.dv))
        << "hk=" << hk;
  }
}

std::vector<int64_t> timeline_of(const Case& c, c10::DeviceType device) {
  memory::Ledger ledger;
  const Inputs cpu = random_inputs(c);
  const auto place = [&](const at::Tensor& t) {
    return at::empty(t.sizes(), t.options().device(device)).zero_();
  };
  const Inputs x{place(cpu.q), place(cpu.k), place(cpu.v), place(cpu.dout)};
  const memory::LedgerBinding binding(ledger);
  ledger.start_timeline();
  { const Results r = run(c, x); }
  std::vector<int64_t> bytes;
  for (const auto& event : ledger.stop_timeline().events)
    if (std::abs(event.bytes) >= 64) bytes.push_back(event.bytes);
  return bytes;
}

bool is_subsequence(const std::vector<int64_t>& part, const std::vector<int64_t>& whole) {
  size_t found = 0;
  for (size_t i = 0; i < whole.size() && found < part.size(); ++i) found += whole[i] == part[found];
  return found == part.size();
}

TEST(Attention, MetaAllocatesWhatTheCpuDoes) {
  for (const int num_threads : {1, 2, 3}) {
    const Threads threads(num_threads);
    for (const auto& bounds : {Bounds{0, 40}, Bounds{0, 17, 17, 250, 1100}})
      for (const auto& [hq, hk] : {std::pair<int64_t, int64_t>{4, 4}, {8, 2}, {6, 1}}) {
        SCOPED_TRACE(testing::Message() << num_threads << " threads, hq=" << hq << " hk=" << hk);
        const Case c{bounds, hq, hk, 32};
        const auto cpu = timeline_of(c, at::kCPU), meta = timeline_of(c, at::kMeta);
        EXPECT_GE(meta.size(), 10u);
        EXPECT_EQ(cpu, meta);
      }
    // In bf16 oneDNN's products may take scratch of their own in between.
    const Case c{{0, 17, 250}, 4, 2, 32, at::kBFloat16};
    EXPECT_TRUE(is_subsequence(timeline_of(c, at::kMeta), timeline_of(c, at::kCPU)));
  }
}

TEST(Attention, RefusesWhatItCannotDo) {
  const Case c{{0, 10}, 4, 2, 16};
  const Inputs x = random_inputs(c);
  const auto forward = [&](const at::Tensor& q, const at::Tensor& k, const Bounds& bounds, double scale) {
    return attention_forward(q, k, x.v, bounds, scale);
  };
  EXPECT_THROW(forward(x.q.narrow(1, 0, 3), x.k, {0, 10}, 1), ValueError);
  EXPECT_THROW(forward(x.q, x.k.narrow(1, 0, 1), {0, 10}, 1), ValueError);
  EXPECT_THROW(forward(x.q, x.k.to(at::kBFloat16), {0, 10}, 1), ValueError);
  EXPECT_THROW(forward(x.q, x.k, {0, 9}, 1), ValueError);
  EXPECT_THROW(forward(x.q, x.k, {0, 7, 5, 10}, 1), ValueError);
  EXPECT_THROW(forward(x.q, x.k, {}, 1), ValueError);
  EXPECT_THROW(forward(x.q, x.k, {0, 10}, 0), ValueError);
  EXPECT_THROW(forward(x.q.transpose(1, 2), x.k, {0, 10}, 1), ValueError);
}

}  // namespace
}  // namespace steppe::kernels
