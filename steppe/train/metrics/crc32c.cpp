#include "steppe/train/metrics/crc32c.h"

#include <array>
#include <bit>

namespace steppe::metrics {
namespace {

constexpr uint32_t kReflectedPolynomial = 0x82F63B78;
constexpr uint32_t kMaskOffset = 0xA282EAD8;

constexpr std::array<uint32_t, 256> byte_remainders() {
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t remainder = byte;
    for (int bit = 0; bit < 8; ++bit) {
      remainder = (remainder >> 1) ^ ((remainder & 1) != 0 ? kReflectedPolynomial : 0);
    }
    table[byte] = remainder;
  }
  return table;
}

constexpr std::array<uint32_t, 256> kByteRemainders = byte_remainders();

}  // namespace

uint32_t crc32c(std::string_view bytes) {
  uint32_t remainder = ~uint32_t{0};
  for (const char c : bytes) {
    remainder = (remainder >> 8) ^ kByteRemainders[(remainder ^ static_cast<unsigned char>(c)) & 0xFF];
  }
  return ~remainder;
}

uint32_t masked_crc32c(std::string_view bytes) {
  return std::rotr(crc32c(bytes), 15) + kMaskOffset;
}

}  // namespace steppe::metrics
