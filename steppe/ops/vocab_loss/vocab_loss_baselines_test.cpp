// The baselines, full and vocab_parallel, against loops in fp64.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "steppe/comm/shape_only_communicator.h"
#include "steppe/comm/test_world.h"
#include "steppe/layout/layout.h"
#include "steppe/memory/scope.h"
#include "steppe/ops/vocab_loss/vocab_loss.h"
#include "steppe/ops/vocab_loss/vocab_loss_reference.h"

namespace steppe::ops {
namespace {

constexpr double kLossBefore = 2.5;  // what the accumulator holds already
constexpr VocabLossKind kBaselines[] = {VocabLossKind::kFull, VocabLossKind::kVocabParallel};

// Everything over all ranks, rows end to end.
struct Batch {
  std::vector<int64_t> rows_of_rank;
  at::Tensor x, targets, row_weight, weight, grad_before;
  int64_t degree() const { return static_cast<int64_t>(rows_of_rank.size()); }
  int64_t first_row(int64_t rank) const {
    return std::accumulate(rows_of_rank.begin(), rows_of_rank.begin() + rank, int64_t{0});
  }
};

Batch random_batch(std::vector<int64_t> rows_of_rank, int64_t vocab, at::ScalarType dtype = at::kFloat) {
  constexpr int64_t kHidden = 12;
  at::manual_seed(41);
  const int64_t n = std::accumulate(rows_of_rank.begin(), rows_of_rank.end(), int64_t{0});
  const Batch batch{
      std::move(rows_of_rank), at::randn({n, kHidden}).to(dtype),     at::randint(0, vocab, {n}, at::kInt),
      at::rand({n}) + 0.5,     at::randn({vocab, kHidden}).to(dtype), at::randn({vocab, kHidden})};
  for (int64_t r = 1; r < n; r += 4) batch.targets[r].fill_(-100);
  return batch;
}

// 0, 9, 2, 0, …: ranks without rows among others.
std::vector<int64_t> uneven_rows(int64_t degree) {
  std::vector<int64_t> rows;
  for (int64_t r = 0; r < degree; ++r) rows.push_back(degree == 1 ? 9 : (r * 9) % 16 * (r % 3 == 0 ? 0 : 1));
  return rows;
}

struct RankResult {
  at::Tensor loss, row_loss, dx, grad;
  int64_t flops = 0;
  memory::Timeline timeline;
};

RankResult run_rank(VocabLossKind kind, const Batch& batch, comm::Communicator& group, bool training,
                    at::Device device) {
  const int64_t rank = group.rank(), n = batch.rows_of_rank[rank], vocab = batch.weight.size(0);
  const auto columns = layout::even_part(vocab, batch.degree(), rank);
  const auto rows = [&](const at::Tensor& t) {
    return t.narrow(0, batch.first_row(rank), n).contiguous().to(device);
  };
  const auto shard = [&](const at::Tensor& t) {
    return t.narrow(0, columns.begin, columns.size()).clone().to(device);
  };
  Counters counters;
  const OpContext context{device, batch.x.scalar_type(), &counters};
  RankResult result{at::full({1}, kLossBefore, at::kDouble).to(device), at::full({n}, -7.0F).to(device)};
  const VocabLossInput input{.x_NH = rows(batch.x),
                             .targets_N = rows(batch.targets),
                             .row_weight_N = rows(batch.row_weight),
                             .weight_vH = shard(batch.weight),
                             .vocab_size = vocab,
                             .first_column = columns.begin,
                             .rows_of_rank = batch.rows_of_rank};
  if (training) result.dx = at::full_like(input.x_NH, -7), result.grad = shard(batch.grad_before);
  auto& ledger = memory::current_ledger();
  ledger.start_timeline();
  vocab_loss(kind, context, group, input, {result.loss, result.row_loss, result.dx, result.grad});
  result.timeline = ledger.stop_timeline();
  result.flops = counters.flops[FlopKind::kVocab];
  EXPECT_EQ(counters.flops.sum(), result.flops);
  group.barrier();
  return result;
}

std::vector<RankResult> run(VocabLossKind kind, const Batch& batch, bool training = true) {
  std::vector<RankResult> results(batch.degree());
  comm::run_ranks(static_cast<int>(batch.degree()),
                  [&](int rank, const c10::intrusive_ptr<c10d::Store>& store) {
                    const auto group = comm::make_world(rank, static_cast<int>(batch.degree()), store);
                    results[rank] = run_rank(kind, batch, *group, training, at::kCPU);
                  });
  return results;
}

void expect_near(const at::Tensor& got, const at::Tensor& want, double bound, const char* name) {
  ASSERT_EQ(got.sizes(), want.sizes()) << name;
  if (want.numel() > 0) {
    EXPECT_LE((got.to(at::kDouble) - want).abs().max().item<double>(), bound) << name;
  }
}

// A logit is H rounded terms (rounded once more in bf16); probabilities and log-sum-exp are off by twice its
// absolute error, and by the rounding of V exponentials and their sum; gradients are sums of those.
void expect_matches_reference(VocabLossKind kind, const Batch& batch) {
  SCOPED_TRACE(::testing::Message() << (kind == VocabLossKind::kFull ? "full" : "vocab_parallel")
                                    << " P=" << batch.degree() << " V=" << batch.weight.size(0) << " "
                                    << c10::toString(batch.x.scalar_type()));
  const auto want = vocab_loss_reference(batch.x, batch.targets, batch.row_weight, batch.weight);
  const double u = 0x1p-24, stored = batch.x.scalar_type() == at::kBFloat16 ? 0x1p-8 : 0;
  const double logit = want.logit_size * ((static_cast<double>(batch.x.size(1)) + 2) * u + stored);
  const double row = 2 * logit + (want.logit_size + static_cast<double>(batch.weight.size(0))) * u;
  const double sums = static_cast<double>(batch.weight.size(0) + batch.x.size(0) + batch.degree()) * u;
  const double relative = 4 * logit + 4 * stored + sums;
  const auto got = run(kind, batch);
  for (int64_t r = 0; r < batch.degree(); ++r) {
    const int64_t first = batch.first_row(r), n = batch.rows_of_rank[r];
    const auto columns = layout::even_part(batch.weight.size(0), batch.degree(), r);
    const auto losses = want.row_loss_N.narrow(0, first, n);
    const auto before = batch.grad_before.narrow(0, columns.begin, columns.size()).to(at::kDouble);
    expect_near(got[r].row_loss, losses, row, "row losses");
    EXPECT_NEAR(got[r].loss.item<double>(), kLossBefore + losses.sum().item<double>(),
                row * static_cast<double>(n + 1));
    expect_near(got[r].dx, want.dx_NH.narrow(0, first, n), relative * want.dx_size, "dx");
    expect_near(got[r].grad, before + want.grad_weight_VH.narrow(0, columns.begin, columns.size()),
                relative * want.grad_size + 8 * u, "weight gradient");
  }
}

class Baselines : public ::testing::TestWithParam<int64_t> {};

TEST_P(Baselines, MatchLoopsInFp64) {
  for (const auto kind : kBaselines) {
    for (const int64_t vocab : {29, 3}) {  // of three columns, some ranks own none
      expect_matches_reference(kind, random_batch(uneven_rows(GetParam()), vocab));
      expect_matches_reference(kind, random_batch(std::vector<int64_t>(GetParam(), 5), vocab));
    }
    expect_matches_reference(kind, random_batch(uneven_rows(GetParam()), 29, at::kBFloat16));
    expect_matches_reference(kind, random_batch(std::vector<int64_t>(GetParam(), 0), 29));
  }
}

TEST_P(Baselines, LogitsOfTenThousand) {
  auto batch = random_batch(std::vector<int64_t>(GetParam(), 6), 29);
  batch.x =
      at::eye(batch.x.size(1)).repeat({(batch.x.size(0) + 11) / 12, 1}).narrow(0, 0, batch.x.size(0)) * 100;
  batch.weight = batch.weight.sign() * 100 + batch.weight * 0.01;
  const auto logits = batch.x.matmul(batch.weight.t());
  ASSERT_TRUE(logits.max().item<float>() > 9.9e3 && logits.min().item<float>() < -9.9e3);
  for (const auto kind : kBaselines) expect_matches_reference(kind, batch);
}

TEST_P(Baselines, NothingToLearnChangesNothing) {
  auto batch = random_batch(std::vector<int64_t>(GetParam(), 5), 29);
  batch.targets.fill_(-100);
  for (const auto kind : kBaselines) {
    const auto got = run(kind, batch);
    for (int64_t r = 0; r < batch.degree(); ++r) {
      const auto columns = layout::even_part(29, batch.degree(), r);
      EXPECT_EQ(got[r].loss.item<double>(), kLossBefore);
      EXPECT_TRUE(at::equal(got[r].row_loss, at::zeros({5})));
      EXPECT_TRUE(at::equal(got[r].dx, at::zeros_like(got[r].dx)));
      EXPECT_TRUE(at::equal(got[r].grad, batch.grad_before.narrow(0, columns.begin, columns.size())));
    }
  }
}

// One product in evaluation, three in training; the same losses; not a byte for gradients.
TEST_P(Baselines, EvaluationDoesNoGradientWork) {
  const auto batch = random_batch(std::vector<int64_t>(GetParam(), 5), 29);
  const int64_t product = 2 * batch.x.size(0) * batch.x.size(1) * 29;
  const auto total = [](const std::vector<RankResult>& ranks) {
    int64_t flops = 0;
    for (const auto& rank : ranks) flops += rank.flops;
    return flops;
  };
  const auto allocated = [](const memory::Timeline& timeline) {
    int64_t count = 0;
    for (const auto& event : timeline.events) {
      EXPECT_EQ(event.category, memory::Category::kVocab);
      count += event.bytes > 0 ? event.bytes : 0;
    }
    return count;
  };
  for (const auto kind : kBaselines) {
    const auto trained = run(kind, batch), evaluated = run(kind, batch, /*training=*/false);
    EXPECT_EQ(total(trained), 3 * product);
    EXPECT_EQ(total(evaluated), product);
    for (int64_t r = 0; r < batch.degree(); ++r) {
      EXPECT_TRUE(at::equal(trained[r].row_loss, evaluated[r].row_loss));
      EXPECT_TRUE(at::equal(trained[r].loss, evaluated[r].loss));
      EXPECT_LE(allocated(evaluated[r].timeline),
                allocated(trained[r].timeline) - (batch.degree() > 1 ? 1 : 0));
    }
  }
}

TEST_P(Baselines, SameBitsOnEveryRun) {
  const auto batch = random_batch(uneven_rows(GetParam()), 29);
  for (const auto kind : kBaselines) {
    const auto first = run(kind, batch), second = run(kind, batch);
    for (int64_t r = 0; r < batch.degree(); ++r) {
      EXPECT_TRUE(at::equal(first[r].loss, second[r].loss) && at::equal(first[r].dx, second[r].dx) &&
                  at::equal(first[r].grad, second[r].grad));
    }
  }
}

TEST_P(Baselines, MetaAllocatesWhatTheCpuDoes) {
  const int degree = static_cast<int>(GetParam());
  const auto batch = random_batch(uneven_rows(degree), 29);
  for (const auto kind : kBaselines) {
    for (const bool training : {true, false}) {
      comm::run_ranks(degree, [&](int rank, const c10::intrusive_ptr<c10d::Store>& store) {
        const auto group = comm::make_world(rank, degree, store);
        comm::ShapeOnlyCommunicator shapes("vocab", rank, degree);
        const auto real = run_rank(kind, batch, *group, training, at::kCPU);
        const auto predicted = run_rank(kind, batch, shapes, training, at::kMeta);
        const auto stream = [](const memory::Timeline& timeline) {
          std::vector<std::pair<int64_t, memory::Category>> events;
          for (const auto& event : timeline.events) events.emplace_back(event.bytes, event.category);
          return events;
        };
        EXPECT_EQ(stream(real.timeline), stream(predicted.timeline));
        EXPECT_EQ(real.flops, predicted.flops);
      });
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Degrees, Baselines, ::testing::Values(1, 2, 3, 4, 7));

}  // namespace
}  // namespace steppe::ops
