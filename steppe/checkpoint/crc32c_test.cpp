#include "steppe/checkpoint/crc32c.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace steppe::checkpoint {
namespace {

// By the definition, bit by bit.
uint32_t by_bits(std::span<const std::byte> bytes) {
  uint32_t remainder = ~uint32_t{0};
  for (const std::byte byte : bytes) {
    remainder ^= static_cast<uint32_t>(byte);
    for (int bit = 0; bit < 8; ++bit) remainder = (remainder >> 1) ^ ((remainder & 1) != 0 ? 0x82F63B78 : 0);
  }
  return ~remainder;
}

TEST(Crc32c, TheStandardsCheckValue) {
  EXPECT_EQ(crc32c("123456789"), 0xE3069283U);
  EXPECT_EQ(crc32c(""), 0U);
}

TEST(Crc32c, InstructionAndTablesFollowTheDefinitionAtEveryLengthAndCut) {
  std::mt19937 rng(1);
  std::vector<std::byte> bytes(70);
  for (auto& byte : bytes) byte = static_cast<std::byte>(rng());
  for (size_t length = 0; length <= bytes.size(); ++length) {
    const auto all = std::span<const std::byte>(bytes).first(length);
    const uint32_t expected = by_bits(all);
    for (size_t cut = 0; cut <= length; cut += 3) {
      EXPECT_EQ(crc32c(all.subspan(cut), crc32c(all.first(cut))), expected);
      EXPECT_EQ(crc32c_by_tables(all.subspan(cut), crc32c_by_tables(all.first(cut))), expected);
    }
  }
}

}  // namespace
}  // namespace steppe::checkpoint
