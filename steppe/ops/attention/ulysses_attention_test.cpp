#include "steppe/ops/attention/ulysses_attention.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "steppe/comm/shape_only_communicator.h"
#include "steppe/comm/test_world.h"
#include "steppe/layout/layout.h"
#include "steppe/memory/scope.h"
#include "steppe/ops/attention/ulysses_attention_reference.h"

namespace steppe::ops {
namespace {

using Counts = std::vector<int64_t>;

struct Case {
  Counts tokens_of_rank;
  Counts document_bounds;
  int64_t heads = 0, kv_heads = 0, head_dim = 16;
  at::ScalarType dtype = at::kFloat;

  int64_t degree() const { return static_cast<int64_t>(tokens_of_rank.size()); }
  int64_t total() const { return document_bounds.back(); }
  int64_t heads_each() const { return heads / degree(); }
  int64_t kv_heads_each() const { return std::max<int64_t>(1, kv_heads / degree()); }
  int64_t first_token(int64_t rank) const {
    return std::accumulate(tokens_of_rank.begin(), tokens_of_rank.begin() + rank, int64_t{0});
  }
  UlyssesShape shape() const {
    return {heads,          kv_heads,       head_dim, 1 / std::sqrt(static_cast<double>(head_dim)),
            tokens_of_rank, document_bounds};
  }
  std::string describe() const {
    return fmt::format("tokens [{}] bounds [{}] hq={} hk={} {}", fmt::join(tokens_of_rank, ","),
                       fmt::join(document_bounds, ","), heads, kv_heads, c10::toString(dtype));
  }
};

// Shards as the trainer cuts them: they differ by one where the degree does not divide the tokens.
Counts even_shards(int64_t total, int64_t degree) {
  Counts shards;
  for (int64_t r = 0; r < degree; ++r) shards.push_back(layout::even_part(total, degree, r).size());
  return shards;
}

// Of the whole row. q, k and v are slices of one projection: strided.
struct Inputs {
  at::Tensor q, k, v, dout;
};
Inputs random_inputs(const Case& c) {
  at::manual_seed(17);
  const auto qkv = at::randn({c.total(), c.heads + 2 * c.kv_heads, c.head_dim}).to(c.dtype);
  return {qkv.narrow(1, 0, c.heads), qkv.narrow(1, c.heads, c.kv_heads),
          qkv.narrow(1, c.heads + c.kv_heads, c.kv_heads),
          at::randn({c.total(), c.heads, c.head_dim}).to(c.dtype)};
}

struct RankResult {
  at::Tensor out, dq, dk, dv;
  int64_t forward_wire_bytes = 0, backward_wire_bytes = 0, flops = 0;
  memory::Timeline forward, backward;
  int64_t kept_bytes = 0;  // what forward left alive: the result and what is saved
};

RankResult run_rank(const Case& c, const Inputs& x, comm::Communicator& group, at::Device device) {
  const auto shard = [&](const at::Tensor& t) {
    const auto mine = t.narrow(0, c.first_token(group.rank()), c.tokens_of_rank[group.rank()]);
    return device.is_meta() ? at::empty_strided(mine.sizes(), mine.strides(), mine.options().device(device))
                            : mine;
  };
  const auto q = shard(x.q), k = shard(x.k), v = shard(x.v);
  const auto dout = shard(x.dout).view({q.size(0), c.heads * c.head_dim});
  Counters counters;
  const OpContext context{device, c.dtype, &counters};
  auto& ledger = memory::current_ledger();
  RankResult result;
  UlyssesSaved saved;
  const int64_t live = ledger.live_bytes(), wire = group.wire_bytes();
  ledger.start_timeline();
  result.out = ulysses_attention_forward(context, group, c.shape(), q, k, v, saved);
  result.forward = ledger.stop_timeline();
  result.kept_bytes = ledger.live_bytes() - live;
  result.forward_wire_bytes = group.wire_bytes() - wire;
  ledger.start_timeline();
  auto grads = ulysses_attention_backward(context, group, c.shape(), dout, saved);
  result.backward = ledger.stop_timeline();
  result.backward_wire_bytes = group.wire_bytes() - wire - result.forward_wire_bytes;
  result.dq = grads.dq_nhd, result.dk = grads.dk_nhd, result.dv = grads.dv_nhd;
  result.flops = counters.flops[FlopKind::kAttention];
  EXPECT_EQ(counters.flops.sum(), result.flops);
  EXPECT_FALSE(saved.q_Shd.defined() || saved.output.out_Shd.defined()) << "saved must be consumed";
  return result;
}

std::vector<RankResult> run(const Case& c, const Inputs& x) {
  std::vector<RankResult> results(c.degree());
  comm::run_ranks(static_cast<int>(c.degree()), [&](int rank, const c10::intrusive_ptr<c10d::Store>& store) {
    const auto group = comm::make_world(rank, static_cast<int>(c.degree()), store);
    results[rank] = run_rank(c, x, *group, at::kCPU);
    group->barrier();  // with nothing to exchange, a rank could leave before its peers have connected
  });
  return results;
}

at::Tensor joined(const std::vector<RankResult>& ranks, at::Tensor RankResult::*what) {
  std::vector<at::Tensor> parts;
  for (const auto& rank : ranks) parts.push_back(rank.*what);
  return at::cat(parts);
}

// fp32: every value ends sums over the head's width, the document and (key-value gradients) the sharing
// heads, rounded at each term. bf16: ATen rounds probabilities, their gradients, outputs and results to bf16,
// a handful of roundings; the sums are fp32.
double tolerance(const Case& c) {
  int64_t longest = 0;
  for (size_t i = 1; i < c.document_bounds.size(); ++i) {
    longest = std::max(longest, c.document_bounds[i] - c.document_bounds[i - 1]);
  }
  if (c.dtype == at::kBFloat16) return 0x1p-8 * 8;
  return 0x1p-24 * static_cast<double>(c.head_dim + longest + c.heads / c.kv_heads);
}

void expect_near(const at::Tensor& got, const at::Tensor& want, double relative, const char* name) {
  ASSERT_EQ(got.sizes(), want.sizes()) << name;
  if (want.numel() == 0) return;
  // Inputs are of order one: where gradients cancel, so are the terms.
  const double largest = std::max(1.0, want.abs().max().item<double>());
  EXPECT_LE((got.to(at::kDouble) - want).abs().max().item<double>(), relative * largest) << name;
}

void expect_matches_reference(const Case& c) {
  SCOPED_TRACE(c.describe());
  const auto x = random_inputs(c);
  const auto shape = c.shape();
  const auto want = attention_reference(x.q, x.k, x.v, x.dout, c.document_bounds, shape.scale);
  const auto got = run(c, x);
  const double relative = tolerance(c);
  expect_near(joined(got, &RankResult::out), want.out_Shd.flatten(1), relative, "out");
  expect_near(joined(got, &RankResult::dq), want.dq_Shd, relative, "dq");
  expect_near(joined(got, &RankResult::dk), want.dk_Shd, relative, "dk");
  expect_near(joined(got, &RankResult::dv), want.dv_Shd, relative, "dv");
  for (const auto& rank : got) {
    EXPECT_EQ(rank.out.scalar_type(), c.dtype);
    EXPECT_TRUE(rank.out.is_contiguous() && rank.dq.is_contiguous() && rank.dk.is_contiguous() &&
                rank.dv.is_contiguous());
  }
}

// (heads, key-value heads) that a degree allows: fewer key-value heads than ranks, as many, more.
std::vector<std::pair<int64_t, int64_t>> heads_for(int64_t degree) {
  switch (degree) {
    case 1:
      return {{4, 2}, {3, 3}};
    case 2:
      return {{4, 1}, {4, 2}, {4, 4}};
    case 3:
      return {{6, 1}, {6, 3}, {6, 6}, {12, 6}};
    default:
      return {{8, 1}, {8, 2}, {4, 4}, {16, 8}};
  }
}

class UlyssesAttention : public ::testing::TestWithParam<int64_t> {};

TEST_P(UlyssesAttention, MatchesLoopsInFp64) {
  const int64_t degree = GetParam();
  for (const auto& [heads, kv_heads] : heads_for(degree)) {
    for (const auto& bounds : {Counts{0, 25}, Counts{0, 7, 8, 8, 23, 31}}) {
      expect_matches_reference({even_shards(bounds.back(), degree), bounds, heads, kv_heads});
    }
  }
}

TEST_P(UlyssesAttention, RanksWithoutTokens) {
  const int64_t degree = GetParam();
  for (const auto& [heads, kv_heads] : heads_for(degree)) {
    expect_matches_reference({even_shards(degree - 1, degree), {0, degree - 1}, heads, kv_heads});
    expect_matches_reference({Counts(degree, 0), {0}, heads, kv_heads});
    Counts all_on_last(degree, 0);
    all_on_last.back() = 9;
    expect_matches_reference({all_on_last, {0, 4, 9}, heads, kv_heads});
  }
}

TEST_P(UlyssesAttention, Bf16) {
  const int64_t degree = GetParam();
  for (const auto& [heads, kv_heads] : heads_for(degree)) {
    expect_matches_reference({even_shards(19, degree), {0, 6, 19}, heads, kv_heads, 16, at::kBFloat16});
  }
}

TEST_P(UlyssesAttention, SameBitsOnEveryRun) {
  const int64_t degree = GetParam();
  for (const auto& [heads, kv_heads] : heads_for(degree)) {
    const Case c{even_shards(37, degree), {0, 11, 37}, heads, kv_heads};
    const auto x = random_inputs(c);
    const auto first = run(c, x), second = run(c, x);
    for (const auto what : {&RankResult::out, &RankResult::dq, &RankResult::dk, &RankResult::dv}) {
      EXPECT_TRUE(at::equal(joined(first, what), joined(second, what))) << c.describe();
    }
  }
}

// Each rank pays for its heads: the causal half of every document, two products forward and five backward.
TEST_P(UlyssesAttention, CountsItsWork) {
  const int64_t degree = GetParam();
  for (const auto& [heads, kv_heads] : heads_for(degree)) {
    const Case c{even_shards(31, degree), {0, 7, 8, 8, 31}, heads, kv_heads};
    const int64_t pairs = 7 * 8 / 2 + 1 + 23 * 24 / 2;
    for (const auto& rank : run(c, random_inputs(c))) {
      EXPECT_EQ(rank.flops, (2 + 5) * 2 * pairs * c.heads_each() * c.head_dim);
    }
  }
}

// What a layer does whose output was kept: everything but attention itself, with the same results.
TEST_P(UlyssesAttention, AKeptOutputStandsInForAttention) {
  const int64_t degree = GetParam();
  const Case c{even_shards(31, degree), {0, 7, 31}, heads_for(degree).back().first, degree};
  const auto x = random_inputs(c);
  comm::run_ranks(static_cast<int>(degree), [&](int rank, const c10::intrusive_ptr<c10d::Store>& store) {
    const auto group = comm::make_world(rank, static_cast<int>(degree), store);
    const auto shard = [&](const at::Tensor& t) {
      return t.narrow(0, c.first_token(rank), c.tokens_of_rank[rank]);
    };
    Counters counters;
    const OpContext context{at::kCPU, c.dtype, &counters};
    UlyssesSaved first, second;
    const auto forward = [&](UlyssesSaved& saved) {
      return ulysses_attention_forward(context, *group, c.shape(), shard(x.q), shard(x.k), shard(x.v), saved);
    };
    first.output_outlives_layer = true;
    const auto out = forward(first);
    const auto flops = counters.flops.sum();
    EXPECT_GT(flops, 0);
    auto& ledger = memory::current_ledger();
    EXPECT_EQ(ledger.live_by_category()[static_cast<size_t>(memory::Category::kSaved)],
              static_cast<int64_t>(first.output.out_Shd.nbytes() + first.output.lse_hS.nbytes()));
    second.output = first.output;
    EXPECT_TRUE(at::equal(forward(second), out));
    EXPECT_EQ(counters.flops.sum(), flops);
    const auto dout = shard(x.dout).reshape(out.sizes());
    const auto grads = ulysses_attention_backward(context, *group, c.shape(), dout, first);
    const auto again = ulysses_attention_backward(context, *group, c.shape(), dout, second);
    EXPECT_TRUE(at::equal(grads.dq_nhd, again.dq_nhd));
    EXPECT_TRUE(at::equal(grads.dk_nhd, again.dk_nhd));
    EXPECT_TRUE(at::equal(grads.dv_nhd, again.dv_nhd));
    group->barrier();
  });
}

TEST_P(UlyssesAttention, WireBytes) {
  const int64_t degree = GetParam();
  for (const auto& [heads, kv_heads] : heads_for(degree)) {
    for (const auto dtype : {at::kFloat, at::kBFloat16}) {
      const Case c{even_shards(22, degree), {0, 9, 22}, heads, kv_heads, 16, dtype};
      const auto ranks = run(c, random_inputs(c));
      const int64_t item = static_cast<int64_t>(c10::elementSize(dtype));
      const int64_t wide = (c.heads_each() + 2 * c.kv_heads_each()) * c.head_dim,
                    narrow = c.heads_each() * c.head_dim;
      for (int64_t r = 0; r < degree; ++r) {
        const int64_t own = c.tokens_of_rank[r], others = c.total() - own;
        EXPECT_EQ(ranks[r].forward_wire_bytes, ((degree - 1) * own * wide + others * narrow) * item)
            << c.describe();
        EXPECT_EQ(ranks[r].backward_wire_bytes, ((degree - 1) * own * narrow + others * wide) * item)
            << c.describe();
      }
    }
  }
}

std::vector<std::pair<int64_t, memory::Category>> stream_of(const memory::Timeline& timeline) {
  std::vector<std::pair<int64_t, memory::Category>> stream;
  for (const auto& event : timeline.events) stream.emplace_back(event.bytes, event.category);
  return stream;
}

int64_t allocated_in(const memory::Timeline& timeline) {
  int64_t bytes = 0;
  for (const auto& event : timeline.events) bytes += std::max<int64_t>(event.bytes, 0);
  return bytes;
}

// What the kernel takes by itself, for this rank's heads of the whole row.
struct KernelBytes {
  int64_t forward = 0, backward = 0;
};
KernelBytes kernel_bytes(const Case& c) {
  at::manual_seed(3);
  const auto q = at::randn({c.total(), c.heads_each(), c.head_dim}).to(c.dtype);
  const auto kv = at::randn({c.total(), c.kv_heads_each(), c.head_dim}).to(c.dtype);
  auto& ledger = memory::current_ledger();
  ledger.start_timeline();
  const auto output = kernels::attention_forward(q, kv, kv, c.document_bounds, 0.25);
  const int64_t forward = allocated_in(ledger.stop_timeline());
  ledger.start_timeline();
  kernels::attention_backward(q, q, kv, kv, output, c.document_bounds, 0.25);
  return {forward, allocated_in(ledger.stop_timeline())};
}

TEST_P(UlyssesAttention, BytesAreThoseClaimed) {
  const int64_t degree = GetParam();
  if (degree == 1) GTEST_SKIP() << "the kernel's own, tested there";
  for (const auto& [heads, kv_heads] : heads_for(degree)) {
    const Case c{even_shards(22, degree), {0, 9, 22}, heads, kv_heads};
    const auto x = random_inputs(c);
    comm::run_ranks(static_cast<int>(degree), [&](int rank, const c10::intrusive_ptr<c10d::Store>& store) {
      const auto group = comm::make_world(rank, static_cast<int>(degree), store);
      const auto kernel = kernel_bytes(c);
      const auto got = run_rank(c, x, *group, at::kCPU);
      const int64_t n = c.tokens_of_rank[rank], d = c.head_dim, kv = c.kv_heads_each(), total = c.total();
      const int64_t there = n * (heads + 2 * degree * kv) * d, here = total * (heads / degree + 2 * kv) * d;
      const int64_t out = n * heads * d, out_here = total * (heads / degree) * d;
      EXPECT_EQ(allocated_in(got.forward), 4 * (there + here + 2 * out) + kernel.forward) << c.describe();
      EXPECT_EQ(allocated_in(got.backward),
                4 * (out + out_here + here + there + n * (heads + 2 * kv_heads) * d) + kernel.backward)
          << c.describe();
      EXPECT_EQ(got.kept_bytes, 4 * (here + out_here + c.heads_each() * total + out)) << c.describe();
      for (const auto* timeline : {&got.forward, &got.backward}) {
        for (const auto& event : timeline->events) EXPECT_EQ(event.category, memory::Category::kAttention);
      }
    });
  }
}

TEST_P(UlyssesAttention, MetaAllocatesWhatTheCpuDoes) {
  const int64_t degree = GetParam();
  for (const auto& [heads, kv_heads] : heads_for(degree)) {
    for (const int64_t total : {22, 300}) {
      const Case c{even_shards(total, degree), {0, 9, 9, total}, heads, kv_heads};
      const auto x = random_inputs(c);
      comm::run_ranks(static_cast<int>(degree), [&](int rank, const c10::intrusive_ptr<c10d::Store>& store) {
        const auto group = comm::make_world(rank, static_cast<int>(degree), store);
        comm::ShapeOnlyCommunicator shapes("sequence", rank, static_cast<int>(degree));
        const auto real = run_rank(c, x, *group, at::kCPU);
        const auto predicted = run_rank(c, x, shapes, at::kMeta);
        EXPECT_GT(real.forward.events.size(), 2U);
        EXPECT_EQ(stream_of(real.forward), stream_of(predicted.forward)) << c.describe();
        EXPECT_EQ(stream_of(real.backward), stream_of(predicted.backward)) << c.describe();
        EXPECT_EQ(real.forward_wire_bytes, predicted.forward_wire_bytes);
        EXPECT_EQ(real.backward_wire_bytes, predicted.backward_wire_bytes);
        EXPECT_EQ(real.flops, predicted.flops);
      });
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Degrees, UlyssesAttention, ::testing::Values(1, 2, 3, 4));

}  // namespace
}  // namespace steppe::ops
