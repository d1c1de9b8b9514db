// CRC-32C (Castagnoli): the checksum of a checkpoint's blocks and texts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace steppe::checkpoint {

// Of `bytes` behind what `before` is the checksum of (0: of nothing). By the processor's instruction where it
// has one (several GB/s), else by tables.
uint32_t crc32c(std::span<const std::byte> bytes, uint32_t before = 0);
uint32_t crc32c(std::string_view text);

// The same without the instruction: what the tests hold it against.
uint32_t crc32c_by_tables(std::span<const std::byte> bytes, uint32_t before = 0);

}  // namespace steppe::checkpoint
