// Element types of kernel operands, as the raw-pointer backends see them. No Torch header.
#pragma once

#include <cstdint>

namespace steppe::kernels {

enum class Element : uint8_t { kFloat32, kBfloat16 };

inline int64_t element_size(Element element) {
  return element == Element::kFloat32 ? 4 : 2;
}

}  // namespace steppe::kernels
