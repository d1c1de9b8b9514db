// CRC-32C (Castagnoli), the checksum of TensorBoard's record format.
#pragma once

#include <cstdint>
#include <string_view>

namespace steppe::metrics {

uint32_t crc32c(std::string_view bytes);

// A checksum stored beside what it covers is rotated and offset, so that checksums of data that itself holds
// checksums do not degenerate.
uint32_t masked_crc32c(std::string_view bytes);

}  // namespace steppe::metrics
