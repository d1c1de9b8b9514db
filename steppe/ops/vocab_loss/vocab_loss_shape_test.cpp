// Soft-capping and z-loss, in every kind, against autograd in fp64.
#include <gtest/gtest.h>

#include <cmath>

#include "steppe/kernels/compare_test.h"
#include "steppe/ops/vocab_loss/group_case_test.h"

namespace steppe::ops {
namespace {

using namespace testing;
using kernels::relative_error;

struct Want {
  at::Tensor row_loss_R, dx_RH, grad_VH;
};

Want autograd(const GroupBatch& batch, const kernels::LossShape& shape) {
  const auto x = batch.x_RH.to(at::kDouble).requires_grad_(),
             w = batch.weight_VH.to(at::kDouble).requires_grad_();
  auto y = x.matmul(w.t());
  if (shape.softcap > 0) y = shape.softcap * (y / shape.softcap).tanh();
  const auto log_sum = y.logsumexp(1);
  const auto index = batch.targets_R.clamp_min(0).to(at::kLong).unsqueeze(1);
  const auto counts = batch.targets_R.ge(0).to(at::kDouble);
  const auto row_loss =
      (log_sum - y.gather(1, index).squeeze(1) + shape.z_loss_coeff * log_sum.square()) * counts;
  (row_loss * batch.row_weight_R.to(at::kDouble)).sum().backward();
  return {row_loss.detach(), x.grad(), w.grad()};
}

void check(GroupCase of, const kernels::LossShape& shape) {
  auto batch = make_batch(of);
  batch.start_grad_VH.zero_();
  const auto want = autograd(batch, shape);
  // A logit's absolute error, relative to values of about one; the cap is within 2^-22 of itself.
  const double unit = kernels::unit_roundoff(of.dtype), spread = 4 * of.logit_scale;
  const double bound = spread * (64 * 0x1p-24 + unit) + shape.softcap * 0x1p-22 + 8 * unit;
  on_group(of, [&](int rank, comm::Communicator& group) {
    for (auto [name, options] : every_kind()) {
      SCOPED_TRACE(::testing::Message() << name << ", cap " << shape.softcap << ", z " << shape.z_loss_coeff
                                        << ", P = " << of.degree());
      options.loss_shape = shape;
      RankRun got(of, batch, rank);
      got.run(options, group);
      const int64_t n = got.x.size(0);
      EXPECT_LE(relative_error(got.row_loss, want.row_loss_R.narrow(0, got.begin, n), 1), 2 * bound);
      EXPECT_LE(relative_error(got.dx, want.dx_RH.narrow(0, got.begin, n), 1), 4 * bound);
      EXPECT_LE(relative_error(got.grad, want.grad_VH.narrow(0, got.columns.begin, got.columns.size()), 1),
                4 * bound);
    }
  });
}

TEST(VocabLossShape, SoftCappingAndZLossMatchAutograd) {
  for (const int degree : {1, 3}) {
    for (const double scale : {1.0, 8.0}) {
      for (const auto& shape : {kernels::LossShape{0, 0}, {5, 0}, {0, 0.1}, {5, 0.1}, {30, 1e-3}}) {
        GroupCase of{{9, 0, 14}};
        of.rows_of_rank.resize(degree);
        of.logit_scale = scale;
        check(of, shape);
      }
    }
    GroupCase of{{9, 0, 14}};
    of.rows_of_rank.resize(degree);
    of.dtype = at::kBFloat16;
    check(of, {5, 0.1});
  }
}

TEST(VocabLossShape, EvaluationCapsButLeavesTheZLossOut) {
  GroupCase of{{9, 4}};
  const auto batch = make_batch(of);
  on_group(of, [&](int rank, comm::Communicator& group) {
    for (auto [name, options] : every_kind()) {
      RankRun both(of, batch, rank), capped(of, batch, rank), plain(of, batch, rank);
      plain.run(options, group, /*gradient=*/false);
      options.loss_shape.softcap = 0.5;
      capped.run(options, group, /*gradient=*/false);
      options.loss_shape.z_loss_coeff = 0.1;
      both.run(options, group, /*gradient=*/false);
      EXPECT_TRUE(at::equal(both.loss, capped.loss)) << name;
      EXPECT_FALSE(at::equal(capped.loss, plain.loss)) << name;
    }
  });
}

// The cap holds where the products themselves would overflow an exponential.
TEST(VocabLossShape, CapsLogitsOfTenThousand) {
  GroupCase of{{9}};
  of.logit_scale = 3e3;
  const auto batch = make_batch(of);
  const auto want = autograd(batch, {30, 0});
  comm::LocalCommunicator group("vocab", at::kCPU);
  for (auto [name, options] : every_kind()) {
    options.loss_shape.softcap = 30;
    RankRun got(of, batch, 0);
    got.run(options, group);
    EXPECT_LE(relative_error(got.row_loss, want.row_loss_R), 1e-5) << name;
    EXPECT_TRUE(got.dx.isfinite().all().item<bool>()) << name;
    EXPECT_LE(got.row_loss.max().item<float>(), 60 + std::log(of.vocab)) << name;
  }
}

}  // namespace
}  // namespace steppe::ops
