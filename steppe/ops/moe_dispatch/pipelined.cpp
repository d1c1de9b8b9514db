#include "steppe/ops/moe_dispatch/pipelined.h"

#include "steppe/ops/moe_dispatch/chunk_mark.h"
#include "steppe/ops/moe_dispatch/chunk_pass.h"
#include "steppe/ops/moe_dispatch/kept_gate_up.h"

namespace steppe::ops {
namespace {

// Calls work(tile) for the chunk's tiles, and part(0), part(1), … when each of as many equal parts of them
// begins.
template <class Work, class Part>
void work_through(const ChunkPass& pass, int64_t chunk, size_t num_parts, Work work, Part part) {
  const auto& tiles = pass.tiles(chunk);
  size_t next = 0;
  for (size_t i = 0; i <= tiles.size(); ++i) {
    while (next < num_parts && next * tiles.size() / num_parts <= i) part(next++);
    if (i < tiles.size()) work(tiles[i]);
  }
}

}  // namespace

void pipelined_forward(const DispatchLayer& layer, const DispatchPlan& plan, const at::Tensor& y_NH,
                       const at::Tensor& x_NH, DispatchSaved* saved) {
  HelperExperts helpers(layer, plan);
  ChunkPass pass(layer, plan, Pass::kForward, saved != nullptr);
  const auto kept_R2I = keep_gate_up(layer, pass.num_received(), saved);
  const auto& leaving = pass.source[0];
  const auto& returning = pass.source[1];
  const auto prepare = [&](int64_t chunk) {
    pass.order(chunk);
    pass.gather_packed(leaving, x_NH, chunk);
  };

  prepare(0);
  auto arrives = pass.dispatch(pass.slot_x(0), leaving, 0);
  const AllExperts experts{layer.weights, helpers.wait()};
  arrives.wait();
  const int64_t last = pass.num_chunks() - 1;
  for (int64_t chunk = 0; chunk <= last; ++chunk) {
    const ChunkMark mark(chunk, pass.num_chunks());
    comm::Pending returns;
    work_through(
        pass, chunk, /*num_parts=*/2,
        [&](const Tile& of) {
          auto& tile = pass.tile;
          const int64_t rows = rows_of(of);
          pass.load_packed(chunk, of);
          const auto x = tile.x_TH.narrow(0, 0, rows);
          const auto items = pass.rows_of_items(chunk, of);
          experts_forward(layer.context, x, {x, tile.weight_T.narrow(0, 0, rows), items, tile.workspace},
                          experts, pass.kept(kept_R2I, chunk, of), 0);
          pass.store_packed(tile.x_TH, {}, chunk, of);
        },
        [&](size_t part) {
          if (part == 0) {
            if (chunk > 0) returns = pass.give_back(returning, pass.slot_x(chunk - 1), chunk - 1);
            if (chunk < last) prepare(chunk + 1);
            return;
          }
          // The other slot is free once its results have left.
          returns.wait();
          if (chunk < last) arrives = pass.dispatch(pass.slot_x(chunk + 1), leaving, chunk + 1);
          if (chunk > 0) pass.combine(y_NH, returning, chunk - 1, /*add=*/true);
        });
    arrives.wait();
  }
  pass.give_back(returning, pass.slot_x(last), last).wait();
  pass.combine(y_NH, returning, last, /*add=*/true);
}

void pipelined_backward(const DispatchLayer& layer, const DispatchPlan& plan, const DispatchGradients& grads,
                        const at::Tensor& dy_NH, const at::Tensor& x_NH, DispatchSaved* saved) {
  HelperExperts helpers(layer, plan);
  const auto helped_grads = helpers.make_gradients(grads.experts);
  const auto kept_R2I = take_gate_up(saved);
  {
    ChunkPass pass(layer, plan, Pass::kBackward, kept_R2I.defined());
    // One buffer: each use of it begins when what the one before put there has left or was combined.
    const auto& x_source = pass.source[0];  // and dx returning
    const auto& dy_source = pass.source[1];
    comm::Pending dy_arrives, dx_returns, x_arrives;
    const auto send_dy = [&](int64_t chunk) {
      pass.order(chunk);
      pass.gather(dy_source, dy_NH, chunk);
      dy_arrives = pass.dispatch(pass.slot_dy(chunk), dy_source, chunk);
    };
    const auto send_x = [&](int64_t chunk) {
      pass.gather_packed(x_source, x_NH, chunk);
      x_arrives = pass.dispatch(pass.slot_x(chunk), x_source, chunk);
    };
    const auto take_back = [&](int64_t chunk) {
      pass.combine(grads.dx_NH, x_source, chunk, /*add=*/false);
      pass.scatter_weights(grads.dweights_Nk, x_source, chunk);
    };

    send_dy(0);
    dy_arrives.wait();
    send_x(0);
    const auto helped = helpers.wait();
    x_arrives.wait();
    const int64_t last = pass.num_chunks() - 1;
    for (int64_t chunk = 0; chunk <= last; ++chunk) {
      const ChunkMark mark(chunk, pass.num_chunks());
      work_through(
          pass, chunk, /*num_parts=*/3,
          [&](const Tile& of) {
            auto& tile = pass.tile;
            const int64_t rows = rows_of(of);
            pass.load_packed(chunk, of);
            pass.load(tile.dy_TH, pass.slot_dy(chunk), chunk, of);
            const auto items = pass.rows_of_items(chunk, of);
            experts_backward(
                layer.context,
                {tile.dy_TH.narrow(0, 0, rows),
                 tile.dweight_T.narrow(0, 0, rows),
                 {tile.x_TH.narrow(0, 0, rows), tile.weight_T.narrow(0, 0, rows), items, tile.workspace},
                 layer.weights,
                 grads.experts,
                 pass.kept(kept_R2I, chunk, of),
                 0},
                helped, helped_grads);
            pass.store_packed(tile.dy_TH, tile.dweight_T, chunk, of);
          },
          [&](size_t part) {
            if (part == 0) {
              if (chunk < last) send_dy(chunk + 1);
            } else if (part == 1) {
              dy_arrives.wait();
              if (chunk > 0) dx_returns = pass.give_back(x_source, pass.slot_x(chunk - 1), chunk - 1);
            } else {
              dx_returns.wait();
              if (chunk > 0) take_back(chunk - 1);
              if (chunk < last) send_x(chunk + 1);
            }
          });
      x_arrives.wait();
    }
    pass.give_back(x_source, pass.slot_x(last), last).wait();
    take_back(last);
  }
  helpers.send_home(helped_grads, grads.experts);
}

}  // namespace steppe::ops
