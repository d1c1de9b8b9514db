// A sum with a row for each row of a batch that goes round the ring behind the batch: in round s this rank
// has that of rank (rank − s) mod P, adds to it and sends it on. It goes tile by tile, each as soon as this
// round is done with it, into the place of the tile that left before: one batch of rows and one tile is all
// it takes.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "steppe/comm/communicator.h"
#include "steppe/ops/context.h"

namespace steppe::ops {

class TravellingSum {
 public:
  // Zeros, fp32 [rows, width]. Tiles of the longest batch are `tile_rows` long, the last perhaps shorter; the
  // same on all ranks. With `alone` (fp32, for a group of one) it is that tensor.
  TravellingSum(const OpContext& context, comm::Communicator& group, std::span<const int64_t> rows_of_rank,
                int64_t width, int64_t tile_rows, const at::Tensor& alone);

  int64_t num_tiles() const { return static_cast<int64_t>(tiles_.size()); }
  // Tile t of what is here in round s; in round P, this rank's own, complete. Waits for it.
  at::Tensor tile(int64_t s, int64_t t);
  // This round has added all it has to tile t. Every rank calls it for every tile of every round, in order.
  void send_on(int64_t s, int64_t t);

 private:
  int64_t rows_at(int64_t s, int64_t t) const;
  void settle();

  comm::Communicator& group_;
  std::span<const int64_t> rows_of_rank_;
  int64_t tile_rows_;
  std::vector<at::Tensor> tiles_;
  at::Tensor spare_;
  comm::Pending moving_;
  int64_t moving_tile_ = -1;
};

}  // namespace steppe::ops
