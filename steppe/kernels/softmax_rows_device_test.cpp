#include <cmath>

#include "steppe/kernels/device_test.h"
#include "steppe/kernels/softmax_rows.h"

namespace steppe::kernels {
namespace {

using SoftmaxRowsDevice = DeviceTest;

struct Strip {
  at::Tensor logits, targets, row_weight;
};

// With rows of large logits, of −∞, without a target, of weight 0.
Strip strip_of(int64_t rows, int64_t columns, int64_t first_column, at::ScalarType dtype) {
  auto logits = at::randn({rows, columns});
  auto targets = at::randint(0, 2 * columns + 1, {rows}, at::kInt) + first_column - columns / 2;
  auto row_weight = at::rand({rows});
  if (rows > 4) {
    logits[0] *= 1e4;
    logits[1].fill_(-INFINITY);
    targets[2].fill_(-1);
    row_weight[3].zero_();
    logits[4][0] = -INFINITY;
  }
  return {with_gaps(logits.to(dtype)), targets.to(at::kInt), row_weight};
}

template <class Body>
void for_strips(const Body& body) {
  for (const auto dtype : kDtypes)
    for (const auto& [rows, columns] : std::vector<std::pair<int64_t, int64_t>>{
             {0, 8}, {3, 0}, {1, 1}, {5, 7}, {70, 1000}, {33, 4097}, {9, 33'001}})
      body(strip_of(rows, columns, 100, dtype), dtype);
}

TEST_F(SoftmaxRowsDevice, Statistics) {
  for_strips([](const Strip& s, at::ScalarType) {
    const auto stats = at::zeros({s.logits.size(0), 3});
    expect_device_agrees({stats, s.logits, s.targets}, 4e-6,
                         [](const Tensors& t) { logit_statistics(t[0], t[1], t[2], 100); });
  });
}

TEST_F(SoftmaxRowsDevice, MergedStatistics) {
  for (const int64_t parts : {1, 2, 7}) {
    auto stats = at::rand({parts, 300, 3});
    stats.select(1, 5).select(1, 0).fill_(-INFINITY);
    stats.select(1, 5).select(1, 1).zero_();
    expect_device_agrees({at::zeros({300, 3}), stats}, 4e-6,
                         [](const Tensors& t) { merge_statistics(t[0], t[1]); });
  }
}

TEST_F(SoftmaxRowsDevice, SoftCap) {
  for_strips([](const Strip& s, at::ScalarType dtype) {
    expect_device_agrees({s.logits}, device_bound(dtype), [](const Tensors& t) { soft_cap(t[0], 30); });
  });
}

TEST_F(SoftmaxRowsDevice, Loss) {
  for (const int64_t rows : {0, 1, 1000, 70'001}) {
    const auto stats = at::stack({at::randn({rows}), at::rand({rows}) + 1, at::randn({rows})}, 1);
    const auto targets = at::randint(-1, 4, {rows}, at::kInt), weight = at::rand({rows});
    for (const double z_loss_coeff : {0.0, 1e-2}) {
      const LossShape shape{0, z_loss_coeff};
      expect_device_agrees({at::ones({1}, at::kDouble), at::zeros({rows}), stats, targets, weight}, 1e-6,
                           [&](const Tensors& t) { add_loss(t[0], t[1], t[2], t[3], t[4], shape); });
      expect_device_agrees({at::ones({1}, at::kDouble), stats, targets}, 1e-6,
                           [&](const Tensors& t) { add_loss(t[0], {}, t[1], t[2], {}, shape); });
    }
  }
}

TEST_F(SoftmaxRowsDevice, Gradient) {
  for (const auto& shape : {LossShape{}, LossShape{30, 0}, LossShape{0, 1e-2}, LossShape{30, 1e-2}}) {
    for_strips([&](const Strip& s, at::ScalarType dtype) {
      auto logits = copy_of(s.logits);
      if (shape.softcap > 0 && logits.size(0) > 1) logits.clamp_(-30, 30);
      const auto stats = at::zeros({logits.size(0), 3});
      logit_statistics(stats, logits, s.targets, 100);
      // A row of −∞ has no softmax: its z would be 0.
      stats.select(1, 1).clamp_min_(1);
      expect_device_agrees({logits, stats, s.targets, s.row_weight}, device_bound(dtype),
                           [&](const Tensors& t) { logits_to_gradient(t[0], t[1], t[2], t[3], 100, shape); });
      if (logits.size(0) > 1) logits[1].zero_();
      expect_device_agrees(
          {logits, stats, s.targets, s.row_weight}, device_bound(dtype),
          [&](const Tensors& t) { statistics_and_gradient(t[1], t[0], t[2], t[3], 100, shape); });
    });
  }
}

}  // namespace
}  // namespace steppe::kernels
