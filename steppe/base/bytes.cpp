#include "steppe/base/bytes.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <limits>

#include "steppe/base/error.h"

namespace steppe {
namespace {

struct Unit {
  std::string_view name;  // lower case
  std::int64_t bytes;
};

constexpr std::int64_t kKi = 1024;
constexpr std::int64_t kK = 1000;
constexpr std::array<Unit, 12> kUnits{{{"", 1},
                                       {"b", 1},
                                       {"kib", kKi},
                                       {"mib", kKi* kKi},
                                       {"gib", kKi* kKi* kKi},
                                       {"tib", kKi* kKi* kKi* kKi},
                                       {"pib", kKi* kKi* kKi* kKi* kKi},
                                       {"kb", kK},
                                       {"mb", kK* kK},
                                       {"gb", kK* kK* kK},
                                       {"tb", kK* kK* kK* kK},
                                       {"pb", kK* kK* kK* kK* kK}}};

constexpr std::array<const char*, 6> kBinaryNames{"B", "KiB", "MiB", "GiB", "TiB", "PiB"};

[[noreturn]] void fail(std::string_view text, std::string_view why) {
  throw ValueError(
      fmt::format("[bytes] \"{}\" {}; a size reads like \"64GiB\", \"512MB\" or \"4096\"", text, why));
}

std::string_view trimmed(std::string_view text) {
  const char* blanks = " \t";
  const auto first = text.find_first_not_of(blanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(blanks) - first + 1);
}

std::int64_t unit_bytes(std::string_view text, std::string_view unit) {
  std::string lower(trimmed(unit));
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  for (const Unit& known : kUnits)
    if (known.name == lower) return known.bytes;
  fail(text, fmt::format("has an unknown unit \"{}\"", trimmed(unit)));
}

}  // namespace

std::int64_t parse_bytes(std::string_view text) {
  const std::string_view body = trimmed(text);
  const std::size_t end = std::min(body.find_first_not_of("0123456789."), body.size());
  const std::string_view digits = body.substr(0, end);
  const std::size_t point = std::min(digits.find('.'), digits.size());
  const std::string_view whole = digits.substr(0, point);
  const std::string_view fraction = point < digits.size() ? digits.substr(point + 1) : std::string_view{};
  if (whole.empty() || fraction.find('.') != std::string_view::npos ||
      (point < digits.size() && fraction.empty()))
    fail(text, "is not a size");
  if (whole.size() > 19 || fraction.size() > 9) fail(text, "has too many digits");

  // Integers throughout: a double would round sizes above 2^53. 19 + 9 digits and the unit fit 128 bits.
  const std::int64_t unit = unit_bytes(text, body.substr(end));
  __extension__ using Wide = unsigned __int128;
  Wide scaled = 0;
  Wide divisor = 1;
  for (const char c : whole) scaled = scaled * 10 + static_cast<unsigned>(c - '0');
  if (scaled * static_cast<Wide>(unit) > static_cast<Wide>(std::numeric_limits<std::int64_t>::max()))
    fail(text, "is over 2^63 - 1 bytes");
  for (const char c : fraction) {
    scaled = scaled * 10 + static_cast<unsigned>(c - '0');
    divisor *= 10;
  }
  scaled *= static_cast<Wide>(unit);
  if (scaled % divisor != 0) fail(text, "is not a whole number of bytes");
  const Wide bytes = scaled / divisor;
  if (bytes > static_cast<Wide>(std::numeric_limits<std::int64_t>::max()))
    fail(text, "is over 2^63 - 1 bytes");
  return static_cast<std::int64_t>(bytes);
}

std::string format_bytes(std::int64_t bytes) {
  double value = static_cast<double>(bytes);
  const double magnitude = value < 0 ? -value : value;
  std::size_t power = 0;
  double scale = 1;
  // 1023.95 would print as "1024.0": step up to the next unit a little early.
  while (power + 1 < kBinaryNames.size() && magnitude / scale >= 1023.95) {
    scale *= 1024;
    ++power;
  }
  value /= scale;
  if (power == 0 || value == static_cast<double>(static_cast<std::int64_t>(value)))
    return fmt::format("{:.0f}{}", value, kBinaryNames[power]);
  return fmt::format("{:.{}f}{}", value, magnitude / scale < 10 ? 2 : 1, kBinaryNames[power]);
}

std::string format_bytes_exactly(std::int64_t bytes) {
  STEPPE_ASSERT(bytes >= 0, "[bytes] cannot write the negative size {} exactly", bytes);
  std::size_t power = 0;
  while (bytes != 0 && bytes % 1024 == 0 && power + 1 < kBinaryNames.size()) {
    bytes /= 1024;
    ++power;
  }
  return fmt::format("{}{}", bytes, kBinaryNames[power]);
}

}  // namespace steppe
