// Sizes in bytes as people write them: "64GiB", "512MB", "1.5 TiB", "4096".
// KiB, MiB, GiB, TiB, PiB are powers of 1024; kB (or KB), MB, GB, TB, PB of 1000; B or nothing is bytes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace steppe {

// The size in bytes; blanks are allowed around and before the unit, units are case-insensitive.
// ValueError: not a non-negative size, not a whole number of bytes, or over the range of int64.
std::int64_t parse_bytes(std::string_view text);

// For people: three significant digits or so, "12.4GiB", "512MiB", "37B"; negative sizes keep their sign.
std::string format_bytes(std::int64_t bytes);

// For files: the largest binary unit that holds the size exactly, "64GiB", "1000000B". parse_bytes gives
// `bytes` back. Precondition: bytes >= 0.
std::string format_bytes_exactly(std::int64_t bytes);

}  // namespace steppe
