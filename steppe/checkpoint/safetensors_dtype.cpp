#include "steppe/checkpoint/safetensors_dtype.h"

#include <algorithm>

#include "steppe/base/error.h"

namespace steppe::checkpoint {
namespace {

struct Named {
  Dtype dtype;
  std::string_view name;
  int64_t size_bytes;
};

constexpr std::array kDtypes = {
    Named{Dtype::kBool, "BOOL", 1},      Named{Dtype::kU8, "U8", 1},          Named{Dtype::kI8, "I8", 1},
    Named{Dtype::kF8E5M2, "F8_E5M2", 1}, Named{Dtype::kF8E4M3, "F8_E4M3", 1}, Named{Dtype::kI16, "I16", 2},
    Named{Dtype::kU16, "U16", 2},        Named{Dtype::kF16, "F16", 2},        Named{Dtype::kBF16, "BF16", 2},
    Named{Dtype::kI32, "I32", 4},        Named{Dtype::kU32, "U32", 4},        Named{Dtype::kF32, "F32", 4},
    Named{Dtype::kI64, "I64", 8},        Named{Dtype::kU64, "U64", 8},        Named{Dtype::kF64, "F64", 8},
};

const Named& entry_of(Dtype dtype) {
  const auto it = std::ranges::find(kDtypes, dtype, &Named::dtype);
  STEPPE_ASSERT(it != kDtypes.end(), "[safetensors] no dtype of number {}", static_cast<int>(dtype));
  return *it;
}

}  // namespace

std::string_view name_of(Dtype dtype) {
  return entry_of(dtype).name;
}

int64_t size_bytes_of(Dtype dtype) {
  return entry_of(dtype).size_bytes;
}

std::optional<Dtype> dtype_named(std::string_view name) {
  const auto it = std::ranges::find(kDtypes, name, &Named::name);
  if (it == kDtypes.end()) return std::nullopt;
  return it->dtype;
}

std::optional<int64_t> numel_of(std::span<const int64_t> shape) {
  int64_t numel = 1;
  for (const int64_t size : shape) {
    if (size < 0 || __builtin_mul_overflow(numel, size, &numel) || numel >= (int64_t{1} << 60))
      return std::nullopt;
  }
  return numel;
}

}  // namespace steppe::checkpoint
