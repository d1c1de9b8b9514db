// The buffers of one pass of a chunked dispatch, and the moves between them. Contract: pipelined.h.
#pragma once

#include <array>
#include <vector>

#include "steppe/comm/communicator.h"
#include "steppe/ops/expert_mlp/tiles.h"
#include "steppe/ops/moe_dispatch/chunk_tokens.h"
#include "steppe/ops/moe_dispatch/helper_experts.h"
#include "steppe/ops/moe_dispatch/moe_dispatch.h"
#include "steppe/ops/moe_dispatch/packed_rows.h"
#include "steppe/ops/moe_dispatch/route_order.h"
#include "steppe/ops/moe_dispatch/route_schedule.h"

namespace steppe::ops {

enum class Pass { kForward, kBackward };

// Rows of a tile, moved out of a slot and back.
struct ExpertTile {
  at::Tensor x_TH, dy_TH, weight_T, dweight_T;  // dy and dweight: backward only
  ExpertWorkspace workspace;
};

class ChunkPass {
 public:
  // keeps: gate and up are kept between the passes, so that tiles have no room for them.
  ChunkPass(const DispatchLayer& layer, const DispatchPlan& plan, Pass pass, bool keeps);

  int64_t num_chunks() const { return plan_.num_chunks(); }
  int64_t num_received() const;  // of all chunks

  // Decides the order of a chunk's routes; three chunks may be at hand.
  void order(int64_t chunk);
  // Rows of the chunk's tokens with their routing weights into a source buffer.
  void gather_packed(const at::Tensor& source_RP, const at::Tensor& x_NH, int64_t chunk) const;
  // A half of dy's columns through the source buffer, which it fills, to its half of the slots.
  comm::Pending dispatch_dy(const at::Tensor& dy_NH, int64_t chunk, int half) const;
  // A source buffer out to the slots of all ranks, and a slot back into the source buffers.
  comm::Pending dispatch(const at::Tensor& slot, const at::Tensor& source, int64_t chunk) const;
  comm::Pending give_back(const at::Tensor& source, const at::Tensor& slot, int64_t chunk) const;
  // Adds up the returned rows of a chunk's tokens.
  void combine(const at::Tensor& y_NH, const at::Tensor& source_RP, int64_t chunk, bool add) const;
  // What the returned rows of a chunk's routes carry, to its places.
  void scatter_weights(const at::Tensor& values_Nk, const at::Tensor& source_RP, int64_t chunk) const;

  const std::vector<Tile>& tiles(int64_t chunk) const { return tiles_[chunk]; }
  // Rows of a tile out of the slots into the tile's buffers, and back; packed: with their weights.
  void load_packed(int64_t chunk, const Tile& tile) const;
  void load_dy(int64_t chunk, const Tile& tile) const;
  void store_packed(const at::Tensor& tile_rows, const at::Tensor& tile_weights, int64_t chunk,
                    const Tile& tile) const;
  // A tile's part of what is kept of all rows received; undefined where nothing is.
  at::Tensor kept(const at::Tensor& of_all, int64_t chunk, const Tile& tile) const;
  // Rows of each item within a tile.
  std::vector<int64_t> rows_of_items(int64_t chunk, const Tile& tile) const;

  // Alternating by chunk.
  const at::Tensor& slot_x(int64_t chunk) const { return slot_x_[chunk % 2]; }  // packed
  // The slot of dy as a packed source buffer: of x before dy arrives there, of dx when it is done with.
  at::Tensor source_in_slot_dy(int64_t chunk) const;
  // Packed rows of this rank's tokens in the forward: leaving and returning.
  std::array<at::Tensor, 2> source;
  ExpertTile tile;

 private:
  // A half of dy's columns: the first ones or the others.
  struct Columns {
    int64_t begin, width;
  };
  Columns columns(int half) const;
  void gather(const at::Tensor& source, const at::Tensor& rows_NH, int64_t chunk) const;
  void load(const at::Tensor& tile_rows, const at::Tensor& slot, int64_t chunk, const Tile& tile) const;
  at::Tensor slot_dy(int64_t chunk, int half) const;

  comm::Communicator& group_;
  const DispatchPlan& plan_;
  const PinnedRouting& routing_;
  ChunkTokens tokens_;
  PackedRow packed_;
  std::vector<RouteSchedule> schedules_;
  std::vector<std::vector<Tile>> tiles_;
  int64_t slot_rows_ = 0, routes_ = 0;          // of a slot; of this rank's largest chunk
  std::array<at::Tensor, 2> slot_x_, slot_dy_;  // slot_dy: values, not rows
  at::Tensor source_dy_;                        // values
  std::array<RouteOrder, 3> orders_;
  RouteOrderScratch order_scratch_;
  at::Tensor ids_ck_, values_ck_;
};

}  // namespace steppe::ops
