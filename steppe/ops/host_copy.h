// Host vectors onto the device, counted. On `meta` only the shape.
#pragma once

#include <ATen/ops/from_blob.h>

#include <cstdint>
#include <cstring>
#include <span>

#include "steppe/ops/context.h"

namespace steppe::ops {

template <class T>
at::Tensor upload(const OpContext& context, std::span<const T> values) {
  const auto count = static_cast<int64_t>(values.size());
  const auto type = c10::CppTypeToScalarType<T>::value;
  const auto out = context.empty({count}, type);
  if (out.is_cpu() && count > 0) {
    std::memcpy(out.data_ptr(), values.data(), values.size_bytes());
  } else if (out.is_cuda()) {
    // From pageable memory this returns when `values` has been read; blocking, it would empty the stream.
    out.copy_(at::from_blob(const_cast<T*>(values.data()), {count}, type), /*non_blocking=*/true);
  }
  if (context.counters) {
    auto& bytes = context.counters->link_bytes[LinkDirection::kHostToDevice];
    bytes.add(LinkPurpose::kControl, static_cast<int64_t>(values.size_bytes()));
  }
  return out;
}

template <class T>
at::Tensor upload(const OpContext& context, const std::vector<T>& values) {
  return upload(context, std::span<const T>(values));
}

}  // namespace steppe::ops
