// A chunk's part of a rank's tokens and routes.
#pragma once

#include <array>

#include "steppe/kernels/permute.h"
#include "steppe/ops/moe_dispatch/moe_dispatch.h"

namespace steppe::ops {

inline at::Tensor first_rows(const at::Tensor& x, int64_t rows) {
  return x.narrow(0, 0, rows);
}

struct ChunkTokens {
  explicit ChunkTokens(const PinnedRouting& routing)
      : split(routing.counts.split), num_tokens(routing.ids_Nk.size(0)), k(routing.ids_Nk.size(1)) {}

  int64_t largest() const { return split.tokens(0, num_tokens); }

  // The rows of a chunk's tokens, as a view.
  at::Tensor rows_of(const at::Tensor& rows_NH, int64_t chunk) const {
    const int64_t tokens = split.tokens(chunk, num_tokens);
    if (tokens == 0) return rows_NH.narrow(0, 0, 0);
    const int64_t first = split.first_token(chunk, num_tokens), stride = split.stride();
    return rows_NH.slice(0, first, first + (tokens - 1) * stride + 1, stride);
  }

  // The values of a chunk's routes side by side, copied into `room`.
  at::Tensor collect(const at::Tensor& room, const at::Tensor& values_Nk, int64_t chunk) const {
    const auto strided = rows_of(values_Nk, chunk);
    const auto together = first_rows(room, strided.numel()).view({strided.size(0), k});
    kernels::copy_row_blocks(together, strided, std::array{kernels::RowBlock{0, 0, strided.size(0)}});
    return together;
  }

  // The way back.
  void spread(const at::Tensor& values_Nk, const at::Tensor& together, int64_t chunk) const {
    const auto places = rows_of(values_Nk, chunk);
    kernels::copy_row_blocks(places, together.view({places.size(0), k}),
                             std::array{kernels::RowBlock{0, 0, places.size(0)}});
  }

  ChunkSplit split;
  int64_t num_tokens, k;
};

}  // namespace steppe::ops
