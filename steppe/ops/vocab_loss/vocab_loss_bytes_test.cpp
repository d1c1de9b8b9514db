// What the header says of bytes, to the byte: memory, wire, and the dry run's events.
#include <gtest/gtest.h>

#include <algorithm>

#include "steppe/comm/shape_only_communicator.h"
#include "steppe/ops/vocab_loss/group_case_test.h"

namespace steppe::ops {
namespace {

using namespace testing;
using enum VocabLossKind;

int64_t ceil_divide(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

struct Sizes {
  Sizes(const GroupCase& of, int rank)
      : degree(of.degree()),
        b(static_cast<int64_t>(c10::elementSize(of.dtype))),
        hidden(of.hidden),
        own(of.rows_of_rank[rank]),
        longest(*std::max_element(of.rows_of_rank.begin(), of.rows_of_rank.end())),
        columns(layout::even_part(of.vocab, degree, rank).size()),
        most_columns(layout::even_part(of.vocab, degree, 0).size()),
        bf16(of.dtype == at::kBFloat16) {}

  int64_t degree, b, hidden, own, longest, columns, most_columns;
  bool bf16;
};

int64_t tiled_bytes(const GroupCase& of, int rank, int64_t tile) {
  const Sizes s(of, rank);
  int64_t rows = 0;
  for (const int64_t n : of.rows_of_rank) rows += std::min(n, tile);
  const int64_t own = std::min(s.own, tile), hb = s.hidden * s.b;
  int64_t bytes = rows * s.columns * s.b + 12 * rows * s.degree;
  if (s.degree == 1) return bytes;
  bytes += 12 * rows + std::min<int64_t>(2, ceil_divide(s.longest, tile)) * rows * (hb + 8);
  bytes += rows * hb + (s.degree - 1) * own * hb;
  return bytes + (s.bf16 ? own * s.hidden * 4 : 0);
}

int64_t ring_bytes(const GroupCase& of, int rank, int64_t tile, Circulate circulate) {
  const Sizes s(of, rank);
  const bool weights = circulate == Circulate::kWeights;
  const int64_t num_tiles = ceil_divide(s.longest, tile);
  const int64_t strip_rows = weights ? std::min(tile, s.own) : ceil_divide(s.longest, num_tiles);
  const int64_t copies = std::min<int64_t>(2, s.degree - 1);
  int64_t bytes = 12 * s.own + strip_rows * (24 + (weights ? s.most_columns : s.columns) * s.b);
  if (s.bf16) bytes += strip_rows * s.hidden * s.b;
  if (weights)
    return bytes + copies * s.most_columns * s.hidden * (s.b + 4) + (s.bf16 ? s.own * s.hidden * 4 : 0);
  bytes += copies * s.longest * (s.hidden * s.b + 20);
  if (s.degree == 1 && !s.bf16) return bytes;
  return bytes + (num_tiles + (s.degree > 1 ? 1 : 0)) * strip_rows * s.hidden * 4;
}

int64_t planned_bytes(const GroupCase& of, int rank, const VocabLossOptions& options) {
  const auto meta = at::TensorOptions().device(at::kMeta);
  const GroupBatch batch{
      at::empty({of.rows(), of.hidden}, meta.dtype(of.dtype)), at::empty({of.rows()}, meta.dtype(at::kInt)),
      at::empty({of.rows()}, meta.dtype(at::kFloat)), at::empty({of.vocab, of.hidden}, meta.dtype(of.dtype)),
      at::empty({of.vocab, of.hidden}, meta.dtype(at::kFloat))};
  comm::ShapeOnlyCommunicator group("vocab", rank, of.degree());
  RankRun run(of, batch, rank, at::kMeta);
  run.run(options, group);
  return run.vocab_bytes;
}

void expect_bytes(const GroupCase& of, const VocabLossOptions& options,
                  const std::function<int64_t(int)>& want) {
  const auto batch = make_batch(of);
  on_group(of, [&](int rank, comm::Communicator& group) {
    RankRun run(of, batch, rank);
    run.run(options, group);
    EXPECT_EQ(planned_bytes(of, rank, options), want(rank)) << "rank " << rank << " of " << of.degree();
    // The CPU's products of bf16 take memory of their own.
    if (of.dtype == at::kFloat) {
      EXPECT_EQ(run.vocab_bytes, want(rank)) << "rank " << rank << " of " << of.degree();
    }
  });
}

TEST(VocabLossBytes, MemoryIsWhatTheHeaderSays) {
  for (const auto& rows :
       std::vector<std::vector<int64_t>>{{13}, {13, 6}, {9, 0, 14}, {5, 5, 5, 5, 5, 5, 6}}) {
    for (const auto dtype : {at::kFloat, at::kBFloat16}) {
      for (const int64_t tile : {4, 100}) {
        GroupCase of{rows};
        of.dtype = dtype;
        expect_bytes(of, options_of(kTiled, tile), [&](int rank) { return tiled_bytes(of, rank, tile); });
        for (const auto circulate : {Circulate::kActivations, Circulate::kWeights}) {
          expect_bytes(of, options_of(kRing, tile, circulate),
                       [&](int rank) { return ring_bytes(of, rank, tile, circulate); });
        }
      }
    }
  }
}

TEST(VocabLossBytes, TiledDoesNotGrowWithTheTokens) {
  for (const int degree : {1, 2, 4}) {
    for (const auto dtype : {at::kFloat, at::kBFloat16}) {
      for (const bool host_targets : {false, true}) {
        std::vector<int64_t> bytes;
        for (const int64_t tokens : {16, 128}) {
          GroupCase of{std::vector<int64_t>(degree, tokens)};
          of.dtype = dtype;
          of.host_targets = host_targets;
          const auto batch = make_batch(of);
          on_group(of, [&](int rank, comm::Communicator& group) {
            RankRun run(of, batch, rank);
            run.run(options_of(kTiled, 4), group);
            if (rank == 0) bytes.push_back(run.vocab_bytes);
          });
        }
        EXPECT_EQ(bytes[0], bytes[1]) << degree << " ranks";
      }
    }
  }
}

TEST(VocabLossBytes, WireIsWhatTheSourcesSay) {
  constexpr int64_t kRows = 12, kVocab = 84;
  for (const int degree : comm::kWorldSizes) {
    for (const auto dtype : {at::kFloat, at::kBFloat16}) {
      GroupCase of{std::vector<int64_t>(degree, kRows)};
      of.vocab = kVocab;
      of.dtype = dtype;
      const auto batch = make_batch(of);
      const int64_t b = Sizes(of, 0).b, h = of.hidden, peers = degree - 1, v = kVocab / degree;
      on_group(of, [&](int rank, comm::Communicator& group) {
        const auto sent = [&](const VocabLossOptions& options) {
          RankRun run(of, batch, rank);
          run.run(options, group);
          return run.wire_bytes;
        };
        EXPECT_EQ(sent(options_of(kTiled, 5)), peers * kRows * (2 * h * b + 8 + 12 * degree));
        if (degree == 1) return;
        EXPECT_EQ(sent(options_of(kRing, 5, Circulate::kActivations)),
                  peers * kRows * (2 * h * b + 24) + degree * kRows * (4 * h + 12));
        EXPECT_EQ(sent(options_of(kRing, 5, Circulate::kWeights)),
                  2 * peers * v * h * b + degree * v * h * 4);
      });
    }
  }
}

// Events of the run itself, tensors under 64 bytes left out.
std::vector<memory::Event> events_of(RankRun& run, const VocabLossOptions& options,
                                     comm::Communicator& group) {
  auto& ledger = memory::current_ledger();
  ledger.start_timeline();
  run.run(options, group);
  auto events = ledger.stop_timeline().events;
  std::erase_if(events, [](const memory::Event& event) { return std::abs(event.bytes) < 64; });
  for (auto& event : events) event.live_bytes = 0;  // counts what was alive before
  return events;
}

// In fp32: the CPU's products of bf16 take memory of their own.
TEST(VocabLossBytes, TheDryRunsEventsAreTheRealOnes) {
  for (const int degree : {1, 2, 4}) {
    for (const bool host_targets : {false, true}) {
      GroupCase of{std::vector<int64_t>(degree, 24)};
      of.vocab = 64;
      of.hidden = 32;
      of.host_targets = host_targets;
      const auto batch = make_batch(of);
      // All ranks alike, as the shape-only communicator takes them to be.
      batch.targets_R.copy_(batch.targets_R.narrow(0, 0, 24).repeat({degree}));
      on_group(of, [&](int rank, comm::Communicator& group) {
        for (const auto& [name, options] : every_kind()) {
          SCOPED_TRACE(::testing::Message() << name << ", rank " << rank << " of " << degree);
          RankRun run(of, batch, rank), dry(of, batch, rank, at::kMeta);
          const auto real = events_of(run, options, group);
          comm::ShapeOnlyCommunicator shape_only("vocab", rank, degree);
          EXPECT_TRUE(events_of(dry, options, shape_only) == real);
          EXPECT_FALSE(real.empty());
        }
      });
    }
  }
}

TEST(VocabLossBytes, AtScaleAgainstFullLogits) {
  GroupCase of{std::vector<int64_t>(8, 65536)};
  of.hidden = 7168;
  of.vocab = 200000;
  of.dtype = at::kBFloat16;
  const auto full = static_cast<double>(planned_bytes(of, 0, kFull));
  EXPECT_LE(static_cast<double>(planned_bytes(of, 0, kTiled)), 0.02 * full);
  EXPECT_LE(static_cast<double>(planned_bytes(of, 0, kRing)), (1 - 0.866) * full);
  // Logits alone are a harder comparison than all that full allocates.
  EXPECT_LE(static_cast<double>(planned_bytes(of, 0, kTiled)), 0.02 * 65536.0 * 200000 * 2);
}

TEST(VocabLossBytes, OneProcessStaysWithin36MiB) {
  GroupCase of{{4096}};
  of.hidden = 256;
  of.vocab = 32768;
  EXPECT_EQ(planned_bytes(of, 0, kTiled), 256 * (32768 * 4 + 12));
}

TEST(VocabLossChoice, AutoTakesTheRingOfWeightsWhereTheWireWouldCostMore) {
  VocabLossShape shape{.hidden = 7168, .vocab_size = 200000, .degree = 8, .max_rows = 65536, .itemsize = 2};
  EXPECT_EQ(resolve_kind({}, shape).kind, kTiled);
  shape.vocab_size = 32000;
  shape.degree = 64;
  const auto chosen = resolve_kind({}, shape);
  EXPECT_EQ(chosen.kind, kRing);
  EXPECT_EQ(chosen.circulate, Circulate::kWeights);
  shape.max_rows = 512;  // the shards would be the larger payload
  EXPECT_EQ(resolve_kind({}, shape).kind, kTiled);
  shape.degree = 1;
  EXPECT_EQ(resolve_kind({}, shape).kind, kTiled);
}

TEST(VocabLossChoice, RingSendsTheSmallerPayload) {
  VocabLossShape shape{.hidden = 64, .vocab_size = 1000, .degree = 4, .max_rows = 250};
  EXPECT_EQ(resolve_kind(kRing, shape).circulate, Circulate::kActivations);
  shape.max_rows = 251;
  EXPECT_EQ(resolve_kind(kRing, shape).circulate, Circulate::kWeights);
  EXPECT_EQ(resolve_kind(options_of(kRing, 0, Circulate::kActivations), shape).circulate,
            Circulate::kActivations);
}

}  // namespace
}  // namespace steppe::ops
