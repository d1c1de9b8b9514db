#include <c10/util/BFloat16.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "steppe/kernels/vector_math_cpu.h"

namespace steppe::kernels::cpu {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Every `step`-th bit pattern of a float, NaNs and infinities included.
std::vector<float> float_patterns(uint32_t step) {
  std::vector<float> values;
  for (uint64_t bits = 0; bits <= 0xffffffffu; bits += step) {
    values.push_back(std::bit_cast<float>(static_cast<uint32_t>(bits)));
  }
  return values;
}

// |got − exact| in units of the last place of a float of exact's size.
double ulps(float got, double exact) {
  int exponent = 0;
  std::frexp(exact, &exponent);
  return std::abs(got - exact) / std::ldexp(1.0, std::max(exponent - 24, -149));
}

TEST(Exp, WithinOneUlp) {
  double worst = 0;
  std::vector<float> inputs = float_patterns(9973);
  for (float x = -103.9f; x < 88.72f; x += 0.00317f) inputs.push_back(x);
  for (const float x : inputs) {
    if (!(x > -103.9f && x < 88.72f)) continue;
    worst = std::max(worst, ulps(exp(x), std::exp(double{x})));
  }
  EXPECT_LE(worst, 1.0);
  EXPECT_GT(worst, 0.5);  // no better than rounding: the measure measures
}

TEST(Exp, Edges) {
  EXPECT_EQ(exp(0.f), 1.f);
  EXPECT_EQ(exp(-0.f), 1.f);
  EXPECT_EQ(exp(-kInfinity), 0.f);
  EXPECT_EQ(exp(kInfinity), kInfinity);
  EXPECT_EQ(exp(89.f), kInfinity);
  EXPECT_EQ(exp(-104.f), 0.f);
  EXPECT_EQ(exp(std::numeric_limits<float>::lowest()), 0.f);
  EXPECT_TRUE(std::isnan(exp(std::numeric_limits<float>::quiet_NaN())));
  EXPECT_TRUE(std::isfinite(exp(88.7228f)));
  EXPECT_EQ(exp(-103.f), std::exp(-103.f));  // denormal
}

TEST(Exp, LanesAgreeWithScalarsBitForBit) {
  const std::vector<float> inputs = float_patterns(65537 * 3);
  for (size_t i = 0; i + kLanes <= inputs.size(); i += kLanes) {
    float lanes[kLanes];
    store(lanes, exp(load(&inputs[i])));
    for (int l = 0; l < kLanes; ++l) {
      const float scalar = exp(inputs[i + l]);
      if (std::isnan(scalar)) {
        EXPECT_TRUE(std::isnan(lanes[l]));
      } else {
        EXPECT_EQ(std::bit_cast<uint32_t>(lanes[l]), std::bit_cast<uint32_t>(scalar)) << inputs[i + l];
      }
    }
  }
}

TEST(Bfloat16, RoundsAsTorchDoes) {
  std::vector<float> inputs = float_patterns(4099);
  for (uint32_t upper = 0; upper < 0x10000u; ++upper) {  // exact ties, and their neighbours
    for (const uint32_t lower : {0x7fffu, 0x8000u, 0x8001u}) {
      inputs.push_back(std::bit_cast<float>(upper << 16 | lower));
    }
  }
  for (const float x : inputs) {
    const c10::BFloat16 expected(x);
    ASSERT_EQ(bfloat16_bits(x), expected.x) << std::bit_cast<uint32_t>(x);
    if (!std::isnan(x)) {
      ASSERT_EQ(to_float(Bfloat16{bfloat16_bits(x)}), static_cast<float>(expected));
    }
  }
}

TEST(Bfloat16, LanesAgreeWithScalars) {
  const std::vector<float> inputs = float_patterns(9973);
  for (size_t i = 0; i + kLanes <= inputs.size(); i += kLanes) {
    Bfloat16 stored[kLanes];
    store(stored, load(&inputs[i]));
    float loaded[kLanes];
    store(loaded, load(stored));
    for (int l = 0; l < kLanes; ++l) {
      ASSERT_EQ(stored[l].bits, bfloat16_bits(inputs[i + l])) << inputs[i + l];
      ASSERT_EQ(std::bit_cast<uint32_t>(loaded[l]), std::bit_cast<uint32_t>(to_float(stored[l])));
    }
  }
}

TEST(Lanes, PartialLoadsAndStores) {
  const std::vector<float> values = {1, 2, 3, 4, 5};
  EXPECT_EQ(sum(load_first(values.data(), 5)), 15.f);
  EXPECT_EQ(maximum(load_first(values.data(), 3, -kInfinity)), 3.f);
  EXPECT_EQ(maximum(load_first(values.data(), 0, -kInfinity)), -kInfinity);
  std::vector<float> out(5, -1.f);
  store_first(out.data(), broadcast(7.f), 3);
  EXPECT_EQ(out, (std::vector<float>{7, 7, 7, -1, -1}));
}

struct FourSizes {
  int64_t sizes[4];
};
__attribute__((noinline)) int64_t product_of(const FourSizes& of) {
  int64_t product = 1;
  for (const int64_t size : of.sizes) product *= size;
  return product;
}

// g++ 12's widest moves of AVX-512 copy {2, 2, 2, 0} as {2, 2, 2, 2}: CMakeLists.txt asks for narrower ones.
TEST(Compiler, CopiesConstantArraysAsTheyAre) {
  const FourSizes constant = {{2, 2, 2, 0}};
  FourSizes copy;
  std::memcpy(&copy, &constant, sizeof copy);
  EXPECT_EQ(product_of(copy), 0);
}

}  // namespace
}  // namespace steppe::kernels::cpu
