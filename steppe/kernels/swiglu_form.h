// What a gated activation does with gate g and up u. No Torch.
//   a = g'·sigmoid(gate_scale·g')·(u' + up_offset),   g' = min(g, limit),   u' = u clamped to ±limit
#pragma once

#include <limits>

namespace steppe::kernels {

struct SwigluForm {
  float gate_scale = 1, limit = std::numeric_limits<float>::infinity(), up_offset = 0;
  bool operator==(const SwigluForm&) const = default;
};

inline constexpr SwigluForm kClampedSwiglu{1.702f, 7.f, 1.f};  // gpt-oss

}  // namespace steppe::kernels
