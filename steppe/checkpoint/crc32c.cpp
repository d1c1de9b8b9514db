#include "steppe/checkpoint/crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace steppe::checkpoint {
namespace {

constexpr uint32_t kReflectedPolynomial = 0x82F63B78;
constexpr size_t kWord = 8;

// tables[k][b]: the remainder of byte b followed by k zero bytes ("slicing by 8", Kounavis and Berry 2005).
using Tables = std::array<std::array<uint32_t, 256>, kWord>;

constexpr Tables make_tables() {
  Tables tables{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t remainder = byte;
    for (int bit = 0; bit < 8; ++bit) {
      remainder = (remainder >> 1) ^ ((remainder & 1) != 0 ? kReflectedPolynomial : 0);
    }
    tables[0][byte] = remainder;
  }
  for (size_t k = 1; k < kWord; ++k) {
    for (uint32_t byte = 0; byte < 256; ++byte) {
      const uint32_t shorter = tables[k - 1][byte];
      tables[k][byte] = (shorter >> 8) ^ tables[0][shorter & 0xFF];
    }
  }
  return tables;
}

constexpr Tables kTables = make_tables();

uint64_t word_at(const std::byte* bytes) {
  uint64_t word;
  std::memcpy(&word, bytes, kWord);
  return word;
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) uint32_t by_instruction(std::span<const std::byte> bytes, uint32_t before) {
  uint64_t remainder = ~before;
  const std::byte* at = bytes.data();
  size_t left = bytes.size();
  for (; left >= kWord; left -= kWord, at += kWord) remainder = _mm_crc32_u64(remainder, word_at(at));
  auto last = static_cast<uint32_t>(remainder);
  for (; left > 0; --left, ++at) last = _mm_crc32_u8(last, static_cast<unsigned char>(*at));
  return ~last;
}

bool has_instruction() {
  static const bool has = __builtin_cpu_supports("sse4.2") != 0;
  return has;
}
#else
uint32_t by_instruction(std::span<const std::byte> bytes, uint32_t before) {
  return crc32c_by_tables(bytes, before);
}

bool has_instruction() {
  return false;
}
#endif

}  // namespace

uint32_t crc32c_by_tables(std::span<const std::byte> bytes, uint32_t before) {
  uint32_t remainder = ~before;
  const std::byte* at = bytes.data();
  size_t left = bytes.size();
  for (; left >= kWord; left -= kWord, at += kWord) {
    const uint64_t word = word_at(at) ^ remainder;
    remainder = 0;
    for (size_t k = 0; k < kWord; ++k) remainder ^= kTables[kWord - 1 - k][(word >> (8 * k)) & 0xFF];
  }
  for (; left > 0; --left, ++at) {
    remainder = (remainder >> 8) ^ kTables[0][(remainder ^ static_cast<unsigned char>(*at)) & 0xFF];
  }
  return ~remainder;
}

uint32_t crc32c(std::span<const std::byte> bytes, uint32_t before) {
  return has_instruction() ? by_instruction(bytes, before) : crc32c_by_tables(bytes, before);
}

uint32_t crc32c(std::string_view text) {
  return crc32c(std::as_bytes(std::span(text.data(), text.size())));
}

}  // namespace steppe::checkpoint
