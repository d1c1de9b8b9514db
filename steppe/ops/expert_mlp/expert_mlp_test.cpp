#include "steppe/ops/expert_mlp/expert_mlp.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <utility>
#include <vector>

#include "steppe/base/error.h"
#include "steppe/kernels/compare_test.h"
#include "steppe/kernels/meta_device.h"
#include "steppe/memory/scope.h"
#include "steppe/ops/expert_mlp/expert_mlp_reference.h"

namespace steppe::ops {
namespace {

using memory::Category;

constexpr int64_t kHidden = 21, kIntermediate = 13;
constexpr at::ScalarType kDtypes[] = {at::kFloat, at::kBFloat16};

const std::vector<std::vector<int64_t>> kRowsOfExpert = {
    {0, 0, 0}, {1}, {0, 17, 0}, {3, 0, 9, 5, 1}, {40, 2}, {0, 0, 31}, {6, 6, 6, 6},
};

struct Inputs {
  std::vector<int64_t> rows_of_expert;
  at::Tensor x_RH, weight_R, dy_RH;
  ExpertWeights weights;
  int64_t num_rows() const { return x_RH.size(0); }
};

enum class Form { kPlain, kBiased, kClamped };  // clamped: biased too

Inputs make_inputs(const std::vector<int64_t>& rows_of_expert, at::ScalarType dtype,
                   Form form = Form::kPlain) {
  at::manual_seed(static_cast<uint64_t>(rows_of_expert.size()) * 1000 + 7);
  const int64_t rows = std::accumulate(rows_of_expert.begin(), rows_of_expert.end(), int64_t{0});
  const auto experts = static_cast<int64_t>(rows_of_expert.size());
  const double over_hidden = 1 / std::sqrt(kHidden), over_intermediate = 1 / std::sqrt(kIntermediate);
  Inputs in{rows_of_expert,
            at::randn({rows, kHidden}).to(dtype),
            at::rand({rows}),
            at::randn({rows, kHidden}).to(dtype),
            {(at::randn({experts, 2 * kIntermediate, kHidden}) * over_hidden).to(dtype),
             (at::randn({experts, kHidden, kIntermediate}) * over_intermediate).to(dtype)}};
  if (form == Form::kPlain) return in;
  in.weights.gate_up_bias_E2I = at::randn({experts, 2 * kIntermediate}).to(dtype);
  in.weights.down_bias_EH = at::randn({experts, kHidden}).to(dtype);
  if (form == Form::kBiased) return in;
  in.weights.form = kernels::kClampedSwiglu;
  // Many values beyond the limit of 7; in bf16 they stay within, where rounding cannot carry them across.
  in.x_RH.mul_(dtype == at::kFloat ? 6 : 1);
  return in;
}

ExpertMlpReference reference_of(const Inputs& in) {
  const auto& w = in.weights;
  return expert_mlp_reference({in.x_RH, in.weight_R, in.rows_of_expert, w.gate_up_E2IH, w.down_EHI, in.dy_RH,
                               w.gate_up_bias_E2I, w.down_bias_EH, w.form == kernels::kClampedSwiglu});
}

// Relative to the largest value. Each tensor on the way is rounded once to the working dtype: gate and up
// (which enter twice), activation and its gradient, their gradients, the result. Products add up `length`
// terms in fp32, and the exponential is right to a few units.
double bound(at::ScalarType dtype, int64_t length) {
  return 6 * kernels::unit_roundoff(dtype) + static_cast<double>(length + 8) * 0x1p-24;
}

struct Outputs {
  at::Tensor y_RH, gate_up_R2I;  // of the forward
  at::Tensor dx_RH, dweight_R;
  ExpertGradients grads;
};

struct Variant {
  int64_t tile_rows = 0;
  bool in_place = false, keep = false, at_once = false;
};
const std::vector<Variant> kVariants = {
    {0, false, false}, {0, true, false},       {0, false, true},       {1, true, false},
    {4, false, false}, {4, true, false},       {5, false, true},       {7, true, false},
    {64, false, true}, {0, true, false, true}, {7, false, true, true}, {12, true, false, true},
};

// Every product of bf16 in a shape not seen before costs a CPU milliseconds.
std::vector<Variant> variants_of(at::ScalarType dtype) {
  return dtype == at::kFloat
             ? kVariants
             : std::vector<Variant>{{0, false, true}, {7, true, false}, {12, true, false, true}};
}

OpContext context_of(const Inputs& in, Counters& counters) {
  return {in.x_RH.device(), in.x_RH.scalar_type(), &counters};
}

void run_forward(const OpContext& context, const Inputs& in, const Variant& variant, Outputs& out) {
  const auto x = variant.in_place ? in.x_RH.clone() : in.x_RH;
  out.y_RH = variant.in_place ? x : at::full_like(x, 99);
  if (variant.keep) out.gate_up_R2I = at::full({in.num_rows(), 2 * kIntermediate}, 99, x.options());
  expert_mlp_forward(context, out.y_RH, {x, in.weight_R, in.rows_of_expert, {}, variant.at_once}, in.weights,
                     out.gate_up_R2I, variant.tile_rows);
}

// Gradients accumulate onto `grads_start`.
void run_backward(const OpContext& context, const Inputs& in, const Variant& variant, double grads_start,
                  Outputs& out) {
  out.dx_RH = in.dy_RH.clone();
  out.dweight_R = at::full_like(in.weight_R, 99);
  const auto fp32 = in.x_RH.options().dtype(at::kFloat);
  const auto start = [&](const at::Tensor& weight) {
    return weight.defined() ? at::full(weight.sizes(), grads_start, fp32) : weight;
  };
  out.grads = {start(in.weights.gate_up_E2IH), start(in.weights.down_EHI), start(in.weights.gate_up_bias_E2I),
               start(in.weights.down_bias_EH)};
  expert_mlp_backward(context, {out.dx_RH,
                                out.dweight_R,
                                {in.x_RH, in.weight_R, in.rows_of_expert, {}, variant.at_once},
                                in.weights,
                                out.grads,
                                out.gate_up_R2I,
                                variant.tile_rows});
}

Outputs run_both(const Inputs& in, const Variant& variant, double grads_start = 0) {
  Counters counters;
  const auto context = context_of(in, counters);
  Outputs out;
  run_forward(context, in, variant, out);
  run_backward(context, in, variant, grads_start, out);
  return out;
}

void expect_agreement(const Inputs& in, at::ScalarType dtype) {
  const auto want = reference_of(in);
  const int64_t hidden = kHidden, inner = kIntermediate, rows = in.num_rows();
  for (const auto& variant : variants_of(dtype)) {
    SCOPED_TRACE(fmt::format("{} rows of {} experts, tiles of {}, in place {}, kept {}, at once {}", rows,
                             in.rows_of_expert.size(), variant.tile_rows, variant.in_place, variant.keep,
                             variant.at_once));
    const auto got = run_both(in, variant, 0.5);
    const auto compare = [&](const at::Tensor& is, const at::Tensor& should_be, int64_t length) {
      EXPECT_LE(kernels::relative_error(is, should_be), bound(dtype, length));
    };
    compare(got.y_RH, want.y_RH, hidden + inner);
    compare(got.dx_RH, want.dx_RH, 2 * hidden + 2 * inner);
    compare(got.dweight_R, want.dweight_R, 2 * hidden + inner);
    compare(got.grads.gate_up_E2IH, want.dgate_up_E2IH + 0.5, 2 * hidden + rows);
    compare(got.grads.down_EHI, want.ddown_EHI + 0.5, 2 * hidden + rows);
    if (!in.weights.down_bias_EH.defined()) continue;
    compare(got.grads.gate_up_bias_E2I, want.dgate_up_bias_E2I + 0.5, 2 * hidden + rows);
    compare(got.grads.down_bias_EH, want.ddown_bias_EH + 0.5, 2 * hidden + rows);
  }
}

TEST(ExpertMlp, AgreesWithTheOracle) {
  for (const auto dtype : kDtypes)
    for (const auto& rows_of_expert : kRowsOfExpert)
      expect_agreement(make_inputs(rows_of_expert, dtype), dtype);
}

TEST(ExpertMlp, WithBiasesAndClampedAgreesWithTheOracle) {
  for (const auto form : {Form::kBiased, Form::kClamped})
    for (const auto dtype : kDtypes)
      for (const auto& rows_of_expert : kRowsOfExpert)
        expect_agreement(make_inputs(rows_of_expert, dtype, form), dtype);
}

TEST(ExpertMlp, ClampedValuesReachTheLimit) {
  const auto in = make_inputs({40, 2}, at::kFloat, Form::kClamped);
  const auto gate_up = in.x_RH.narrow(0, 0, 40).mm(in.weights.gate_up_E2IH[0].t());
  EXPECT_GT(gate_up.abs().gt(8).sum().item<int64_t>(), 50);
}

TEST(ExpertMlp, AWeightOfZeroHasAGradient) {
  auto in = make_inputs({5, 3}, at::kFloat, Form::kClamped);
  in.weight_R.zero_();
  const auto want = reference_of(in);
  ASSERT_GT(want.dweight_R.abs().min().item<double>(), 0);
  const auto got = run_both(in, {});
  EXPECT_LE(kernels::relative_error(got.dweight_R, want.dweight_R),
            bound(at::kFloat, 2 * kHidden + kIntermediate));
  for (const auto& zero : {got.y_RH, got.dx_RH, got.grads.gate_up_E2IH, got.grads.down_EHI,
                           got.grads.gate_up_bias_E2I, got.grads.down_bias_EH})
    EXPECT_TRUE(zero.eq(0).all().item<bool>());
}

TEST(ExpertMlp, AnExpertWithoutRowsKeepsItsGradient) {
  for (const auto dtype : kDtypes) {
    const auto got = run_both(make_inputs({4, 0, 3}, dtype), {.tile_rows = 2}, 0.25);
    EXPECT_TRUE(got.grads.gate_up_E2IH[1].eq(0.25).all().item<bool>());
    EXPECT_TRUE(got.grads.down_EHI[1].eq(0.25).all().item<bool>());
  }
}

// Sums of one tile are rounded to bf16 twice, with the product and into the gradient, or once.
TEST(ExpertMlp, GradientsOfTheWorkingDtypeAreThoseOfFp32Rounded) {
  const auto in = make_inputs({3, 0, 9, 5, 1}, at::kBFloat16);
  const auto want = run_both(in, {});
  Counters counters;
  const auto context = context_of(in, counters);
  const auto zeros = [](const at::Tensor& like) { return at::zeros(like.sizes(), like.options()); };
  const ExpertGradients grads{zeros(in.weights.gate_up_E2IH), zeros(in.weights.down_EHI)};
  const auto dx = in.dy_RH.clone(), dweight = at::empty_like(in.weight_R);
  expert_mlp_backward(context,
                      {dx, dweight, {in.x_RH, in.weight_R, in.rows_of_expert}, in.weights, grads, {}, 0});
  EXPECT_TRUE(at::equal(dx, want.dx_RH));
  for (const auto& [got, fp32] :
       {std::pair{grads.gate_up_E2IH, want.grads.gate_up_E2IH}, {grads.down_EHI, want.grads.down_EHI}})
    EXPECT_LE(kernels::relative_error(got, fp32.to(at::kDouble)), 2 * kernels::unit_roundoff(at::kBFloat16));
}

TEST(ExpertMlp, ExpertsAtOnceGiveTheBitsOfExpertsInTurn) {
  for (const auto form : {Form::kPlain, Form::kClamped})
    for (const auto& rows_of_expert : kRowsOfExpert) {
      const auto in = make_inputs(rows_of_expert, at::kFloat, form);
      const auto in_turn = run_both(in, {.tile_rows = 12}),
                 at_once = run_both(in, {.tile_rows = 12, .at_once = true});
      EXPECT_TRUE(at::equal(in_turn.y_RH, at_once.y_RH));
      EXPECT_TRUE(at::equal(in_turn.dx_RH, at_once.dx_RH));
      EXPECT_TRUE(at::equal(in_turn.dweight_R, at_once.dweight_R));
      EXPECT_TRUE(at::equal(in_turn.grads.gate_up_E2IH, at_once.grads.gate_up_E2IH));
      EXPECT_TRUE(at::equal(in_turn.grads.down_EHI, at_once.grads.down_EHI));
    }
}

TEST(ExpertMlp, RepeatsBitForBit) {
  for (const auto dtype : kDtypes)
    for (const auto& variant : variants_of(dtype)) {
      const auto in = make_inputs({3, 0, 9, 5, 1}, dtype);
      const auto once = run_both(in, variant), again = run_both(in, variant);
      EXPECT_TRUE(at::equal(once.y_RH, again.y_RH));
      EXPECT_TRUE(at::equal(once.dx_RH, again.dx_RH));
      EXPECT_TRUE(at::equal(once.dweight_R, again.dweight_R));
      EXPECT_TRUE(at::equal(once.grads.gate_up_E2IH, again.grads.gate_up_E2IH));
      EXPECT_TRUE(at::equal(once.grads.down_EHI, again.grads.down_EHI));
    }
}

TEST(ExpertMlp, CountsThreeProductsForwardAndSixBackwardBesidesThoseRecomputed) {
  const auto in = make_inputs({3, 0, 9}, at::kFloat);
  const int64_t unit = 2 * 12 * kHidden * kIntermediate;
  for (const auto& variant : kVariants) {
    Counters counters;
    const auto context = context_of(in, counters);
    Outputs out;
    run_forward(context, in, variant, out);
    EXPECT_EQ(counters.flops[FlopKind::kExpert], 3 * unit);
    run_backward(context, in, variant, 0, out);
    EXPECT_EQ(counters.flops[FlopKind::kExpert], (3 + 6 + (variant.keep ? 0 : 2)) * unit);
    EXPECT_EQ(counters.flops.sum(), counters.flops[FlopKind::kExpert]);
  }
}

// What `run` adds at most to a category.
template <class Run>
memory::BytesByCategory own_peaks_of(Run run) {
  auto& ledger = memory::current_ledger();
  const auto before = ledger.live_by_category();
  ledger.reset_peak();
  run();
  auto peaks = ledger.peak_by_own_category();
  for (size_t c = 0; c < peaks.size(); ++c) peaks[c] -= before[c];
  EXPECT_EQ(ledger.live_by_category()[static_cast<int>(Category::kExpert)],
            before[static_cast<int>(Category::kExpert)]);
  return peaks;
}

Inputs on_meta(Inputs in) {
  for (auto* tensor : {&in.x_RH, &in.weight_R, &in.dy_RH, &in.weights.gate_up_E2IH, &in.weights.down_EHI,
                       &in.weights.gate_up_bias_E2I, &in.weights.down_bias_EH})
    if (tensor->defined()) *tensor = tensor->to(at::kMeta);
  return in;
}

void expect_tile_and_gradient(const Inputs& in, const Variant& variant) {
  const int64_t size = in.x_RH.element_size(), rows = in.num_rows();
  const int64_t tile = variant.tile_rows == 0 ? rows : std::min(variant.tile_rows, rows);
  const int64_t interior = tile * (variant.keep ? 1 : 3) * kIntermediate * size;
  Counters counters;
  const auto context = context_of(in, counters);
  Outputs out;
  const auto forward = own_peaks_of([&] { run_forward(context, in, variant, out); });
  EXPECT_EQ(forward[static_cast<int>(Category::kExpert)], interior);
  EXPECT_EQ(forward[static_cast<int>(Category::kGrads)], 0);
  const auto backward = own_peaks_of([&] { run_backward(context, in, variant, 0, out); });
  EXPECT_EQ(backward[static_cast<int>(Category::kExpert)], interior);
  EXPECT_EQ(backward[static_cast<int>(Category::kGrads)], size == 4 ? 0 : 2 * kIntermediate * kHidden * size);
}

// bf16 on `meta`: on a CPU the library that multiplies bf16 takes scratch of its own.
TEST(ExpertMlp, TakesOneTileAndWithBf16OneGradient) {
  for (const auto& variant : kVariants) {
    expect_tile_and_gradient(make_inputs({3, 0, 40, 2}, at::kFloat), variant);
    expect_tile_and_gradient(on_meta(make_inputs({3, 0, 40, 2}, at::kFloat)), variant);
    expect_tile_and_gradient(on_meta(make_inputs({3, 0, 40, 2}, at::kBFloat16)), variant);
  }
}

// A tile of 12 rows holds experts 0, 2 and 3, with one between them that has none.
TEST(ExpertMlp, WhereGroupsAreMultipliedAtOnceTheDeviceIsToldTheirEnds) {
  const auto in = on_meta(make_inputs({3, 0, 4, 5}, at::kBFloat16));
  const int64_t interior = 12 * 3 * kIntermediate * in.x_RH.element_size();
  Counters counters;
  const auto context = context_of(in, counters);
  Outputs out;
  const kernels::MetaStandsFor device(at::kCUDA);
  for (const auto& run : {std::function([&] { run_forward(context, in, {.tile_rows = 12}, out); }),
                          std::function([&] { run_backward(context, in, {.tile_rows = 12}, 0, out); })})
    EXPECT_EQ(own_peaks_of(run)[static_cast<int>(Category::kExpert)], interior + 4 * 4);
}

std::vector<memory::Event> events_of(const Inputs& in, const Variant& variant) {
  auto& ledger = memory::current_ledger();
  const int64_t before = ledger.live_bytes();
  ledger.start_timeline();
  run_both(in, variant);
  auto events = ledger.stop_timeline().events;
  for (auto& event : events) event.live_bytes -= before;
  return events;
}

TEST(ExpertMlp, AllocatesOnMetaWhatItAllocatesOnTheCpu) {
  for (const auto& rows_of_expert : kRowsOfExpert)
    for (const auto& variant : kVariants) {
      const auto in = make_inputs(rows_of_expert, at::kFloat, Form::kClamped);
      const auto want = events_of(in, variant);
      EXPECT_FALSE(want.empty());
      EXPECT_TRUE(events_of(on_meta(in), variant) == want);
    }
}

TEST(ExpertMlp, RowsThatDoNotAddUpAreABrokenInvariant) {
  auto in = make_inputs({3, 4}, at::kFloat);
  in.rows_of_expert = {3, 5};
  EXPECT_THROW(run_both(in, {}), InternalError);
}

}  // namespace
}  // namespace steppe::ops
