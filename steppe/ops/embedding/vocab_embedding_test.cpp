#include "steppe/ops/embedding/vocab_embedding.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "steppe/comm/shape_only_communicator.h"
#include "steppe/comm/test_world.h"
#include "steppe/memory/scope.h"
#include "steppe/ops/embedding/vocab_embedding_reference.h"

namespace steppe::ops {
namespace {

using layout::even_part;

struct Case {
  int64_t degree = 1, vocab_size = 23, hidden = 9;
  std::vector<std::vector<int32_t>> tokens_of_rank;
  at::ScalarType dtype = at::kFloat;
};

// Rank r's tokens: some of its own rows, many of others', repeats; `rows(r)` says how many.
Case some_tokens(int64_t degree, const std::function<int64_t(int64_t)>& rows,
                 at::ScalarType dtype = at::kFloat) {
  Case c{degree, 23, 9, {}, dtype};
  for (int64_t r = 0; r < degree; ++r) {
    std::vector<int32_t> tokens;
    for (int64_t t = 0; t < rows(r); ++t)
      tokens.push_back(static_cast<int32_t>((t * t + 5 * r) % c.vocab_size));
    c.tokens_of_rank.push_back(std::move(tokens));
  }
  return c;
}

struct RankResult {
  at::Tensor out, grad;  // grad of this rank's rows, on top of what it held
  int64_t ids_wire = 0, forward_wire = 0, backward_wire = 0;
  memory::Timeline ids_timeline, forward_timeline, backward_timeline;
};

struct Inputs {
  at::Tensor table, grad_before, dy;  // dy of all ranks' tokens, end to end
};
Inputs inputs_of(const Case& c) {
  at::manual_seed(29);
  int64_t total = 0;
  for (const auto& tokens : c.tokens_of_rank) total += static_cast<int64_t>(tokens.size());
  return {at::randn({c.vocab_size, c.hidden}).to(c.dtype), at::randn({c.vocab_size, c.hidden}),
          at::randn({total, c.hidden}).to(c.dtype)};
}

RankResult run_rank(const Case& c, const Inputs& in, comm::Communicator& group, at::Device device) {
  const int64_t rank = group.rank();
  const auto& tokens = c.tokens_of_rank[rank];
  const auto rows = even_part(c.vocab_size, c.degree, rank);
  int64_t first = 0;
  std::vector<int64_t> receive_rows;
  for (int64_t p = 0; p < c.degree; ++p) {
    if (p < rank) first += static_cast<int64_t>(c.tokens_of_rank[p].size());
    receive_rows.push_back(tokens_by_owner(c.tokens_of_rank[p], c.vocab_size, c.degree)[rank]);
  }
  const int64_t n = static_cast<int64_t>(tokens.size());
  const auto table = in.table.narrow(0, rows.begin, rows.size()).to(device);
  const auto dy = in.dy.narrow(0, first, n).to(device);
  Counters counters;
  const OpContext context{device, c.dtype, &counters};
  auto& ledger = memory::current_ledger();
  RankResult result;
  result.out = context.empty({n, c.hidden});
  result.grad = in.grad_before.narrow(0, rows.begin, rows.size()).clone().to(device);

  const auto measured = [&](int64_t& wire, memory::Timeline& timeline, const auto& body) {
    const int64_t before = group.wire_bytes();
    ledger.start_timeline();
    body();
    timeline = ledger.stop_timeline();
    wire = group.wire_bytes() - before;
  };
  EmbeddingRoute route;
  measured(result.ids_wire, result.ids_timeline,
           [&] { route = exchange_ids(context, group, c.vocab_size, tokens, receive_rows); });
  measured(result.forward_wire, result.forward_timeline,
           [&] { embedding_forward(context, group, result.out, table, rows.begin, route); });
  measured(result.backward_wire, result.backward_timeline,
           [&] { embedding_backward(context, group, result.grad, dy, rows.begin, route); });
  group.barrier();
  return result;
}

std::vector<RankResult> run(const Case& c, const Inputs& in) {
  std::vector<RankResult> results(c.degree);
  comm::run_ranks(static_cast<int>(c.degree), [&](int rank, const c10::intrusive_ptr<c10d::Store>& store) {
    const auto group = comm::make_world(rank, static_cast<int>(c.degree), store);
    results[rank] = run_rank(c, in, *group, at::kCPU);
  });
  return results;
}

at::Tensor joined(const std::vector<RankResult>& ranks, at::Tensor RankResult::*what) {
  std::vector<at::Tensor> parts;
  for (const auto& rank : ranks) parts.push_back(rank.*what);
  return at::cat(parts);
}

std::vector<int32_t> all_tokens(const Case& c) {
  std::vector<int32_t> all;
  for (const auto& tokens : c.tokens_of_rank) all.insert(all.end(), tokens.begin(), tokens.end());
  return all;
}

void expect_matches_reference(const Case& c) {
  const auto in = inputs_of(c);
  const auto tokens = all_tokens(c);
  const auto got = run(c, in);
  // Rows are moved, not computed.
  EXPECT_TRUE(
      at::equal(joined(got, &RankResult::out).to(at::kDouble), embedding_reference(in.table, tokens)));
  // Gradients come on top of what is there (a tied table's gradient of the head): one fp32 rounding a term.
  const auto want = in.grad_before.to(at::kDouble), terms = want.abs();
  embedding_gradient_reference(want, terms, in.dy, tokens);
  const auto bound = terms * (0x1p-24 * static_cast<double>(tokens.size() + 1));
  EXPECT_TRUE(((joined(got, &RankResult::grad).to(at::kDouble) - want).abs() <= bound).all().item<bool>());
}

class VocabEmbedding : public ::testing::TestWithParam<int64_t> {};

TEST_P(VocabEmbedding, MatchesLoopsInFp64) {
  const int64_t degree = GetParam();
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    expect_matches_reference(some_tokens(
        degree, [](int64_t r) { return 12 + r; }, dtype));
    expect_matches_reference(some_tokens(
        degree, [](int64_t r) { return r % 2 == 0 ? 0 : 17; }, dtype));
  }
  expect_matches_reference(some_tokens(degree, [](int64_t) { return 0; }));
  Case one_owner = some_tokens(degree, [](int64_t) { return 10; });
  for (auto& tokens : one_owner.tokens_of_rank) std::fill(tokens.begin(), tokens.end(), 22);
  expect_matches_reference(one_owner);
}

// A vocabulary smaller than the group leaves ranks without rows.
TEST_P(VocabEmbedding, OwnersWithoutRows) {
  const int64_t degree = GetParam();
  Case c{degree, 2, 5, {}};
  for (int64_t r = 0; r < degree; ++r) c.tokens_of_rank.push_back({1, 0, static_cast<int32_t>(r % 2), 1});
  expect_matches_reference(c);
}

TEST_P(VocabEmbedding, SameBitsOnEveryRun) {
  const auto c = some_tokens(GetParam(), [](int64_t r) { return 40 + r; });
  const auto in = inputs_of(c);
  const auto first = run(c, in), second = run(c, in);
  EXPECT_TRUE(at::equal(joined(first, &RankResult::grad), joined(second, &RankResult::grad)));
}

int64_t allocated_in(const memory::Timeline& timeline, memory::Category category) {
  int64_t bytes = 0;
  for (const auto& event : timeline.events) {
    EXPECT_EQ(event.category, category);
    bytes += std::max<int64_t>(event.bytes, 0);
  }
  return bytes;
}

TEST_P(VocabEmbedding, BytesAndWireAreThoseClaimed) {
  const int64_t degree = GetParam();
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    const auto c = some_tokens(
        degree, [](int64_t r) { return 12 + 3 * r; }, dtype);
    const auto got = run(c, inputs_of(c));
    const int64_t row = c.hidden * static_cast<int64_t>(c10::elementSize(dtype));
    for (int64_t r = 0; r < degree; ++r) {
      const int64_t n = static_cast<int64_t>(c.tokens_of_rank[r].size());
      int64_t received = 0;
      for (const auto& tokens : c.tokens_of_rank)
        received += tokens_by_owner(tokens, c.vocab_size, degree)[r];
      const int64_t own = tokens_by_owner(c.tokens_of_rank[r], c.vocab_size, degree)[r];
      EXPECT_EQ(got[r].ids_wire, 4 * (n - own));
      EXPECT_EQ(got[r].forward_wire, row * (received - own));
      EXPECT_EQ(got[r].backward_wire, row * (n - own));
      const int64_t kept = degree == 1 ? 4 * n : 4 * (2 * n + received);
      const int64_t ids = allocated_in(got[r].ids_timeline, memory::Category::kBatch);
      EXPECT_EQ(got[r].ids_timeline.events.back().live_bytes - got[r].ids_timeline.events.front().live_bytes +
                    got[r].ids_timeline.events.front().bytes,
                kept);
      EXPECT_EQ(ids, degree == 1 ? kept : kept + 4 * n);  // the ids on their way out
      const int64_t rows = degree == 1 ? 0 : row * (received + n);
      EXPECT_EQ(allocated_in(got[r].forward_timeline, memory::Category::kVocab), rows);
      EXPECT_EQ(allocated_in(got[r].backward_timeline, memory::Category::kVocab), rows);
    }
  }
}

TEST_P(VocabEmbedding, MetaAllocatesWhatTheCpuDoes) {
  const int64_t degree = GetParam();
  const auto c = some_tokens(degree, [](int64_t r) { return 12 + r; });
  const auto in = inputs_of(c);
  comm::run_ranks(static_cast<int>(degree), [&](int rank, const c10::intrusive_ptr<c10d::Store>& store) {
    const auto group = comm::make_world(rank, static_cast<int>(degree), store);
    comm::ShapeOnlyCommunicator shapes("vocab", rank, static_cast<int>(degree));
    const auto real = run_rank(c, in, *group, at::kCPU), predicted = run_rank(c, in, shapes, at::kMeta);
    const auto stream = [](const memory::Timeline& timeline) {
      std::vector<std::pair<int64_t, memory::Category>> events;
      for (const auto& event : timeline.events) events.emplace_back(event.bytes, event.category);
      return events;
    };
    EXPECT_EQ(stream(real.ids_timeline), stream(predicted.ids_timeline));
    EXPECT_EQ(stream(real.forward_timeline), stream(predicted.forward_timeline));
    EXPECT_EQ(stream(real.backward_timeline), stream(predicted.backward_timeline));
    EXPECT_EQ(real.forward_wire, predicted.forward_wire);
    EXPECT_EQ(real.backward_wire, predicted.backward_wire);
  });
}

INSTANTIATE_TEST_SUITE_P(Degrees, VocabEmbedding, ::testing::Values(1, 2, 3, 4, 7));

}  // namespace
}  // namespace steppe::ops
