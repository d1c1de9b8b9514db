// Kernels that compute row by row: normalization, rotation, gates, clamps, routing.
#include <cmath>
#include <limits>

#include "steppe/kernels/clamp.h"
#include "steppe/kernels/device_test.h"
#include "steppe/kernels/rms_norm.h"
#include "steppe/kernels/rotary.h"
#include "steppe/kernels/router.h"
#include "steppe/kernels/row_bias.h"
#include "steppe/kernels/swiglu.h"

namespace steppe::kernels {
namespace {

using RowsDevice = DeviceTest;

struct Shape {
  int64_t rows, columns;
};
const std::vector<Shape> kShapes = {{0, 8}, {1, 1}, {3, 7}, {200, 64}, {130, 259}, {2, 2050}, {300, 1030}};

TEST_F(RowsDevice, RmsNorm) {
  for (const auto dtype : kDtypes)
    for (const auto [rows, columns] : kShapes) {
      const auto x = with_gaps(at::randn({rows, columns}).to(dtype));
      const auto weight = (at::randn({columns}) + 1).to(dtype);
      expect_device_agrees({with_gaps(at::zeros({rows, columns}, dtype)), at::zeros({rows}), x, weight},
                           device_bound(dtype),
                           [](const Tensors& t) { rms_norm_forward(t[0], t[1], t[2], t[3], 1e-6); });
    }
}

TEST_F(RowsDevice, RmsNormBackward) {
  for (const auto dtype : kDtypes)
    for (const auto [rows, columns] : kShapes)
      for (const bool add : {false, true}) {
        const auto x = at::randn({rows, columns}).to(dtype), dy = at::randn({rows, columns}).to(dtype);
        const auto weight = (at::randn({columns}) + 1).to(dtype);
        const auto inv_rms = at::rand({rows}) + 0.5;  // with x's own, a single column's terms cancel
        expect_device_agrees(
            {at::randn({rows, columns}).to(dtype), at::randn({columns}), dy, x, weight, inv_rms},
            device_bound(dtype) + 1e-5, [&](const Tensors& t) {
              rms_norm_backward({t[0], t[1], t[2], t[3], t[4], t[5], add});
            });
      }
}

TEST_F(RowsDevice, Rotary) {
  const std::vector<float> frequencies = {1.f, 0.3f, 0.01f, 1e-4f};
  for (const auto dtype : kDtypes)
    for (const int64_t tokens : {0, 1, 300}) {
      const auto positions = at::randint(0, 100'000, {tokens}, at::kInt);
      expect_device_agrees({at::zeros({tokens, 4}), at::zeros({tokens, 4}), positions}, 1e-6,
                           [&](const Tensors& t) { rotary_tables(t[0], t[1], t[2], frequencies, 1.25); });
      const auto angle = at::rand({tokens, 4}) * 6;
      const auto x = at::randn({tokens, 3, 8}).to(dtype);
      const auto apart = at::randn({tokens, 5, 16}).to(dtype).narrow(1, 1, 3).narrow(2, 0, 8);
      for (const bool inverse : {false, true})
        for (const auto& heads : {x, apart})
          expect_device_agrees({heads, angle.cos(), angle.sin()}, device_bound(dtype),
                               [&](const Tensors& t) { rotary(t[0], t[1], t[2], inverse); });
    }
}

TEST_F(RowsDevice, Swiglu) {
  for (const auto dtype : kDtypes)
    for (const auto& [rows, columns] : std::vector<Shape>{{0, 8}, {1, 1}, {3, 7}, {200, 64}, {65, 1030}})
      for (const auto& form : {SwigluForm{}, kClampedSwiglu})
        for (const auto& bias : {at::Tensor(), at::randn({2 * columns}).to(dtype)})
          for (const auto& weight : {at::Tensor(), at::rand({rows})}) {
            const auto gate_up = at::randn({rows, 2 * columns}).to(dtype) * 3;
            const auto da = at::randn({rows, columns}).to(dtype);
            expect_device_agrees({at::zeros({rows, columns}, dtype), gate_up, weight, bias},
                                 device_bound(dtype), [&](const Tensors& t) {
                                   swiglu_forward(t[0], t[1], t[2], {form, t[3]});
                                 });
            const auto grad_weight = weight.defined() ? at::zeros({rows}) : at::Tensor();
            expect_device_agrees({gate_up, da, weight, grad_weight, bias}, device_bound(dtype) + 1e-5,
                                 [&](const Tensors& t) {
                                   swiglu_backward_inplace(t[0], t[1], t[2], t[3], {form, t[4]});
                                 });
          }
}

TEST_F(RowsDevice, RowBias) {
  for (const auto dtype : kDtypes)
    for (const auto& [rows, columns] : std::vector<Shape>{{0, 8}, {1, 1}, {3, 7}, {200, 64}, {700, 259}}) {
      const auto x = with_gaps(at::randn({rows, columns}).to(dtype));
      const auto bias = at::randn({columns}).to(dtype);
      for (const auto& weight : {at::Tensor(), at::rand({rows})}) {
        expect_device_agrees({x, bias, weight}, device_bound(dtype),
                             [](const Tensors& t) { add_row_bias(t[0], t[1], t[2]); });
        expect_device_agrees({at::randn({columns}), x, weight}, 1e-5,
                             [](const Tensors& t) { add_column_sums(t[0], t[1], t[2]); });
      }
      expect_device_agrees({at::randn({rows}), x, bias}, 1e-5,
                           [](const Tensors& t) { add_row_dots(t[0], t[1], t[2]); });
    }
}

TEST_F(RowsDevice, Clamp) {
  for (const auto dtype : kDtypes)
    for (const int64_t n : {0, 1, 7, 100'003}) {
      auto x = at::randn({n}).to(dtype) * 4;
      if (n > 2) x[1] = std::numeric_limits<float>::quiet_NaN();
      expect_device_agrees({at::zeros({n}, dtype), x.nan_to_num(9)}, 0,
                           [](const Tensors& t) { clamp_forward(t[0], t[1], 2.5); });
      expect_device_agrees({at::zeros({n}, dtype), x}, 1e-9,
                           [](const Tensors& t) { clamp_forward(t[0], t[1], 2.5); });
      expect_device_agrees({at::randn({n}).to(dtype), x.nan_to_num(9)}, 0,
                           [](const Tensors& t) { clamp_backward(t[0], t[1], 2.5); });
    }
}

TEST_F(RowsDevice, RouterScoresAndChoice) {
  for (const int64_t experts : {1, 7, 64, 129, 512})
    for (const int64_t tokens : {0, 1, 130}) {
      const auto logits = at::randn({tokens, experts}) * 5;
      if (tokens > 0) logits[0] *= 2000;
      for (const auto& log_sum_exp : {at::Tensor(), at::zeros({tokens})})
        expect_device_agrees({at::zeros({tokens, experts}), logits, log_sum_exp}, 4e-6,
                             [](const Tensors& t) { softmax_rows(t[0], t[1], t[2]); });
      const int64_t k = std::min<int64_t>(experts, 8);
      auto tied = at::randint(0, 3, {tokens, experts}, at::kFloat);
      if (tokens > 1) tied[1].fill_(std::numeric_limits<float>::quiet_NaN());
      if (tokens > 1) tied = tied.nan_to_num(-INFINITY);
      for (const auto& scores : {at::rand({tokens, experts}), tied})
        for (const auto& bias : {at::Tensor(), at::randn({experts})})
          expect_device_agrees({at::zeros({tokens, k}, at::kInt), scores, bias}, 0,
                               [](const Tensors& t) { top_k(t[0], t[1], t[2]); });
    }
}

TEST_F(RowsDevice, RouterWeightsBackwardAndCounts) {
  for (const int64_t tokens : {0, 1, 500}) {
    const int64_t experts = 67, k = 4;
    const auto scores = at::randn({tokens, experts}).softmax(-1);
    const auto ids = at::randint(0, experts, {tokens, k}, at::kInt);  // a token may list an expert twice
    const auto dweights = at::randn({tokens, k});
    for (const bool normalize : {false, true}) {
      const auto weights = at::zeros({tokens, k});
      expect_device_agrees({weights, scores, ids}, 4e-6,
                           [&](const Tensors& t) { gather_scores(t[0], t[1], t[2], normalize); });
      gather_scores(weights, scores, ids, normalize);
      expect_device_agrees({at::zeros({tokens, experts}), dweights, weights, scores, ids}, 1e-5,
                           [&](const Tensors& t) {
                             router_backward({t[0], t[1], t[2], t[3], t[4], normalize});
                           });
      expect_device_agrees({dweights, weights, scores, ids}, 1e-5, [&](const Tensors& t) {
        router_backward({t[2], t[0], t[1], t[2], t[3], normalize});  // in place
      });
      // With gradients of the router's own losses.
      expect_device_agrees({dweights, weights, scores, ids, at::randn({experts}), at::randn({tokens})}, 1e-5,
                           [&](const Tensors& t) {
                             router_backward({t[2], t[0], t[1], t[2], t[3], normalize, t[4], t[5], 0.3});
                           });
    }
    expect_device_agrees({at::ones({experts}, at::kLong), ids}, 0,
                         [](const Tensors& t) { count_routes(t[0], t[1]); });
  }
}

}  // namespace
}  // namespace steppe::kernels
