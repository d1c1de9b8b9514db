// Tiles of rows that are grouped by expert: whole experts while they fit, then parts of one. A pure host
// function.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace steppe::ops {

// Rows of one expert within a tile.
struct Segment {
  int64_t expert, begin, rows;
};
using Tile = std::vector<Segment>;  // never empty; segments follow each other

// tile_rows = 0: all rows are one tile.
inline std::vector<Tile> cut_tiles(std::span<const int64_t> rows_of_expert, int64_t tile_rows) {
  const int64_t limit = tile_rows > 0 ? tile_rows : std::numeric_limits<int64_t>::max();
  std::vector<Tile> tiles;
  int64_t filled = limit, row = 0;
  for (int64_t e = 0; e < static_cast<int64_t>(rows_of_expert.size()); ++e) {
    for (int64_t left = rows_of_expert[e]; left > 0;) {
      if (filled == limit || (left > limit - filled && left <= limit)) {
        tiles.emplace_back();
        filled = 0;
      }
      const int64_t rows = left < limit - filled ? left : limit - filled;
      tiles.back().push_back({e, row, rows});
      filled += rows, row += rows, left -= rows;
    }
  }
  return tiles;
}

inline int64_t rows_of(const Tile& tile) {
  return tile.back().begin + tile.back().rows - tile.front().begin;
}

}  // namespace steppe::ops
