// The element types of the format, for its reader and its writer.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "steppe/checkpoint/safetensors.h"

namespace steppe::checkpoint {

std::optional<Dtype> dtype_named(std::string_view name);

// Elements of a shape; nothing when a size is negative or the product does not fit 62 bits.
std::optional<int64_t> numel_of(std::span<const int64_t> shape);

}  // namespace steppe::checkpoint
