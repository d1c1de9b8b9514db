#include "steppe/ops/moe_dispatch/pipelined.h"

#include "steppe/ops/moe_dispatch/chunk_pass.h"

namespace steppe::ops {
namespace {

// Calls work(tile) for the chunk's tiles, and midway(), once, when half of them are done.
template <class Work, class Midway>
void work_through(const ChunkPass& pass, int64_t chunk, Work work, Midway midway) {
  const auto& tiles = pass.tiles(chunk);
  for (size_t i = 0; i < tiles.size(); ++i) {
    if (i == tiles.size() / 2) midway();
    work(tiles[i]);
  }
  if (tiles.empty()) midway();
}

}  // namespace

void pipelined_forward(const OpContext& context, comm::Communicator& group, const DispatchPlan& plan,
                       const at::Tensor& y_NH, const at::Tensor& x_NH, const PinnedRouting& routing,
                       const ExpertWeights& weights, int64_t tile_rows) {
  HelperExperts helpers(context, group, plan, weights);
  ChunkPass pass(context, group, plan, routing, weights, tile_rows, Pass::kForward);
  const auto& leaving = pass.source[0];
  const auto& returning = pass.source[1];
  const auto prepare = [&](int64_t chunk) {
    pass.order(chunk);
    pass.gather_packed(leaving, x_NH, chunk);
  };

  prepare(0);
  auto arrives = pass.dispatch(pass.slot_x(0), leaving, 0);
  const AllExperts experts{weights, helpers.wait()};
  arrives.wait();
  const int64_t last = pass.num_chunks() - 1;
  for (int64_t chunk = 0; chunk <= last; ++chunk) {
    comm::Pending returns;
    if (chunk > 0) returns = pass.give_back(returning, pass.slot_x(chunk - 1), chunk - 1);
    if (chunk < last) prepare(chunk + 1);
    work_through(
        pass, chunk,
        [&](const Tile& of) {
          auto& tile = pass.tile;
          const int64_t rows = rows_of(of);
          pass.load_packed(chunk, of);
          const auto x = tile.x_TH.narrow(0, 0, rows);
          const auto items = pass.rows_of_items(chunk, of);
          experts_forward(context, x, {x, tile.weight_T.narrow(0, 0, rows), items, tile.workspace}, experts,
                          {}, 0);
          pass.store_packed(tile.x_TH, {}, chunk, of);
        },
        [&] {
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

void pipelined_backward(const OpContext& context, comm::Communicator& group, const DispatchPlan& plan,
                        const DispatchGradients& grads, const at::Tensor& dy_NH, const at::Tensor& x_NH,
                        const PinnedRouting& routing, const ExpertWeights& weights, int64_t tile_rows) {
  HelperExperts helpers(context, group, plan, weights);
  const auto helped_grads = helpers.make_gradients();
  {
    ChunkPass pass(context, group, plan, routing, weights, tile_rows, Pass::kBackward);
    const auto& x_leaving = pass.source[0];  // and dx returning
    const auto& dy_leaving = pass.source[1];
    comm::Pending x_arrives, dy_arrives;
    const auto send = [&](int64_t chunk) {
      pass.gather_packed(x_leaving, x_NH, chunk);
      x_arrives = pass.dispatch(pass.slot_x(chunk), x_leaving, chunk);
      dy_arrives = pass.dispatch(pass.slot_dy(chunk), dy_leaving, chunk);
    };
    const auto wait_for_arrival = [&] { x_arrives.wait(), dy_arrives.wait(); };
    const auto take_back = [&](int64_t chunk) {
      pass.combine(grads.dx_NH, x_leaving, chunk, /*add=*/false);
      pass.scatter_weights(grads.dweights_Nk, x_leaving, chunk);
    };

    pass.order(0);
    pass.gather(dy_leaving, dy_NH, 0);
    send(0);
    const auto helped = helpers.wait();
    wait_for_arrival();
    const int64_t last = pass.num_chunks() - 1;
    comm::Pending dx_returns;
    for (int64_t chunk = 0; chunk <= last; ++chunk) {
      if (chunk > 0) dx_returns = pass.give_back(x_leaving, pass.slot_x(chunk - 1), chunk - 1);
      if (chunk < last) {
        pass.order(chunk + 1);
        pass.gather(dy_leaving, dy_NH, chunk + 1);
      }
      work_through(
          pass, chunk,
          [&](const Tile& of) {
            auto& tile = pass.tile;
            const int64_t rows = rows_of(of);
            pass.load_packed(chunk, of);
            pass.load(tile.dy_TH, pass.slot_dy(chunk), chunk, of);
            const auto items = pass.rows_of_items(chunk, of);
            experts_backward(
                context,
                {tile.dy_TH.narrow(0, 0, rows),
                 tile.dweight_T.narrow(0, 0, rows),
                 {tile.x_TH.narrow(0, 0, rows), tile.weight_T.narrow(0, 0, rows), items, tile.workspace},
                 weights,
                 grads.experts,
                 {},
                 0},
                helped, helped_grads);
            pass.store_packed(tile.dy_TH, tile.dweight_T, chunk, of);
          },
          [&] {
            dx_returns.wait();
            if (chunk > 0) take_back(chunk - 1);
            if (chunk < last) send(chunk + 1);
          });
      wait_for_arrival();
    }
    pass.give_back(x_leaving, pass.slot_x(last), last).wait();
    take_back(last);
  }
  helpers.send_home(helped_grads, grads.experts);
}

}  // namespace steppe::ops
