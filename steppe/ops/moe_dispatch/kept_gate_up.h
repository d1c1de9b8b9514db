// Gate and up of all chunks' rows, where a forward keeps them for its backward.
#pragma once

#include <utility>

#include "steppe/memory/scope.h"
#include "steppe/ops/moe_dispatch/moe_dispatch.h"

namespace steppe::ops {

// Room for `rows` rows in category `saved`; undefined where nothing is kept.
inline at::Tensor keep_gate_up(const DispatchLayer& layer, int64_t rows, DispatchSaved* saved) {
  if (saved == nullptr) return {};
  const memory::Scope scope(memory::Category::kSaved);
  *saved = {.gate_up_R2I = layer.context.empty({rows, layer.weights.gate_up_E2IH.size(1)})};
  return saved->gate_up_R2I;
}

// What was kept, consumed.
inline at::Tensor take_gate_up(DispatchSaved* saved) {
  if (saved == nullptr) return {};
  return std::exchange(*saved, {}).gate_up_R2I;
}

}  // namespace steppe::ops
