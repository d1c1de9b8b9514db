// Apart from permute.h, so that backends see it without a Torch header.
#pragma once

#include <cstdint>

namespace steppe::kernels {

struct RowBlock {
  int64_t to = 0, from = 0, rows = 0;
};

}  // namespace steppe::kernels
