#include "steppe/kernels/swiglu.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <vector>

#include "steppe/base/error.h"
#include "steppe/kernels/compare_test.h"

namespace steppe::kernels {
namespace {

struct Case {
  at::Tensor gate_up, da, row_weight;
};

const SwigluForm kForms[] = {{}, kClampedSwiglu};

// Rows inside wider tensors; gates far out too, where the exponential saturates.
Case random_case(int64_t rows, int64_t columns, at::ScalarType dtype, bool weighted) {
  Case c;
  c.gate_up = at::randn({rows, 2 * columns + 5}).mul_(4).to(dtype).narrow(1, 2, 2 * columns);
  c.da = at::randn({rows, columns + 3}).to(dtype).narrow(1, 1, columns);
  if (rows > 0) c.gate_up[0][0] = -150, c.gate_up[rows - 1][columns - 1] = 150;
  if (weighted) {
    c.row_weight = at::rand({rows});
    if (rows > 1) c.row_weight[1] = 0;
  }
  return c;
}

at::Tensor oracle(const at::Tensor& gate_up, const at::Tensor& row_weight, const at::Tensor& bias,
                  const SwigluForm& form) {
  const auto halves = (bias.defined() ? gate_up + bias : gate_up).chunk(2, 1);
  const auto gate = halves[0].clamp_max(form.limit), up = halves[1].clamp(-form.limit, form.limit);
  const auto a = gate * (gate * form.gate_scale).sigmoid() * (up + form.up_offset);
  return row_weight.defined() ? a * row_weight.unsqueeze(1) : a;
}

at::Tensor to_fp64(const at::Tensor& x) {
  return x.defined() ? x.to(at::kDouble).clone().set_requires_grad(true) : at::Tensor();
}

struct ShapeAndForm {
  int64_t rows, columns;
  SwigluForm form;
  bool biased;
};

std::vector<ShapeAndForm> shapes_and_forms() {
  std::vector<ShapeAndForm> all;
  for (const auto& form : kForms)
    for (const bool biased : {false, true})
      for (const auto& [rows, columns] :
           std::vector<std::pair<int64_t, int64_t>>{{0, 8}, {1, 1}, {7, 19}, {300, 96}})
        all.push_back({rows, columns, form, biased});
  return all;
}

TEST(Swiglu, AgreesWithAutograd) {
  at::manual_seed(1);
  for (const auto dtype : {at::kFloat, at::kBFloat16})
    for (const bool weighted : {false, true})
      for (const auto [rows, columns, form, biased] : shapes_and_forms()) {
        SCOPED_TRACE(::testing::Message() << rows << "x" << columns << ", limit " << form.limit);
        const auto [gate_up, da, row_weight] = random_case(rows, columns, dtype, weighted);
        const auto bias = biased ? at::randn({2 * columns}).to(dtype) : at::Tensor();
        const SwigluOptions options{form, bias};
        const auto x64 = to_fp64(gate_up), weight64 = to_fp64(row_weight);
        const auto a64 = oracle(x64, weight64, biased ? bias.to(at::kDouble) : bias, form);
        (a64 * da.to(at::kDouble)).sum().backward();
        const double bound = 1e-6 + unit_roundoff(dtype);

        const auto a = at::empty({rows, columns}, dtype);
        EXPECT_EQ(num_allocations_in([&] { swiglu_forward(a, gate_up, row_weight, options); }), 0);
        EXPECT_LE(relative_error(a, a64.detach()), bound);

        const auto grad_row_weight = weighted ? at::full({rows}, 7.0f) : at::Tensor();
        const auto backward = [&, gate_up = gate_up, da = da, row_weight = row_weight] {
          swiglu_backward_inplace(gate_up, da, row_weight, grad_row_weight, options);
        };
        EXPECT_EQ(num_allocations_in(backward), 0);
        EXPECT_LE(relative_error(gate_up, x64.grad()), bound);
        EXPECT_TRUE(at::equal(da, a));
        if (weighted) {
          // da and the activation are exact inputs here, so only the sum's rounding counts.
          EXPECT_LE(relative_error(grad_row_weight, weight64.grad()), 2e-6);
        }
      }
}

TEST(Swiglu, SameBitsForAnyThreads) {
  at::manual_seed(2);
  const auto original = random_case(501, 130, at::kFloat, true);
  std::vector<at::Tensor> first;
  for_numbers_of_threads([&](int) {
    const auto gate_up = original.gate_up.clone(), da = original.da.clone(),
               grad_row_weight = at::empty({501});
    swiglu_backward_inplace(gate_up, da, original.row_weight, grad_row_weight);
    const std::vector<at::Tensor> results = {gate_up, da, grad_row_weight};
    if (first.empty()) first = results;
    for (size_t i = 0; i < results.size(); ++i) EXPECT_TRUE(at::equal(results[i], first[i]));
  });
}

TEST(Swiglu, MetaReturnsAndMistakesAreNamed) {
  const auto meta = at::TensorOptions().device(at::kMeta);
  swiglu_forward(at::empty({4, 3}, meta), at::empty({4, 6}, meta), {});
  swiglu_backward_inplace(at::empty({4, 6}, meta), at::empty({4, 3}, meta), {}, at::empty({4}, meta));

  const auto gate_up = at::zeros({4, 6}), a = at::zeros({4, 3});
  EXPECT_THROW(swiglu_forward(at::zeros({4, 6}), gate_up, {}), ValueError);
  EXPECT_THROW(swiglu_forward(at::zeros({4, 2}), at::zeros({4, 5}), {}), ValueError);
  EXPECT_THROW(swiglu_forward(a.to(at::kBFloat16), gate_up, {}), ValueError);
  EXPECT_THROW(swiglu_forward(a, gate_up, at::zeros({3})), ValueError);
  EXPECT_THROW(swiglu_forward(at::zeros({3, 4}).t(), gate_up, {}), ValueError);
  EXPECT_THROW(swiglu_forward(a, gate_up, {}, {.bias_2I = at::zeros({5})}), ValueError);
  EXPECT_THROW(swiglu_forward(a, gate_up, {}, {.bias_2I = at::zeros({6}, at::kBFloat16)}), ValueError);
  EXPECT_THROW(swiglu_backward_inplace(gate_up, a, {}, at::zeros({4}, at::kDouble)), ValueError);
}

}  // namespace
}  // namespace steppe::kernels
