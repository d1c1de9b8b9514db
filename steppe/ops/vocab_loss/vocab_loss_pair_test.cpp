#include "steppe/ops/vocab_loss/vocab_loss_pair.h"

#include <gtest/gtest.h>

#include "steppe/kernels/compare_test.h"
#include "steppe/ops/vocab_loss/group_case_test.h"

namespace steppe::ops {
namespace {

using namespace testing;

TEST(VocabLossPair, ScalesWhatTheForwardComputed) {
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    for (const int degree : {1, 3}) {
      GroupCase of{{9, 0, 14}};
      of.rows_of_rank.resize(degree);
      of.dtype = dtype;
      auto batch = make_batch(of);
      batch.start_grad_VH.zero_();
      for (const auto& [name, options] : every_kind()) {
        SCOPED_TRACE(name);
        on_group(of, [&](int rank, comm::Communicator& group) {
          RankRun once(of, batch, rank), halves(of, batch, rank);
          once.run(options, group);
          const auto saved = vocab_loss_forward(options, halves.context, group,
                                                {halves.x, halves.targets, halves.row_weight, halves.weight,
                                                 of.vocab, halves.columns.begin, of.rows_of_rank},
                                                halves.loss, halves.row_loss);
          vocab_loss_backward(saved, -2.5);
          EXPECT_TRUE(at::equal(halves.loss, once.loss));
          EXPECT_TRUE(at::equal(halves.row_loss, once.row_loss));
          EXPECT_LE(kernels::relative_error(saved.dx_NH, once.dx.to(at::kDouble) * -2.5),
                    kernels::unit_roundoff(dtype));
          EXPECT_LE(kernels::relative_error(saved.grad_weight_vH, once.grad.to(at::kDouble) * -2.5), 0x1p-24);
        });
      }
    }
  }
}

TEST(VocabLossPair, KeepsTheGradientsAndNothingElse) {
  GroupCase of{{12}};
  const auto batch = make_batch(of);
  comm::LocalCommunicator group("vocab", at::kCPU);
  RankRun run(of, batch, 0);
  const auto before = memory::current_ledger().live_bytes();
  const auto saved = vocab_loss_forward(
      VocabLossKind::kTiled, run.context, group,
      {run.x, run.targets, run.row_weight, run.weight, of.vocab, 0, of.rows_of_rank}, run.loss, run.row_loss);
  EXPECT_EQ(memory::current_ledger().live_bytes() - before, 4 * (12 + of.vocab) * of.hidden);
}

}  // namespace
}  // namespace steppe::ops
