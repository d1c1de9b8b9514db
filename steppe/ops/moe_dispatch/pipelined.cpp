#include "steppe/ops/moe_dispatch/pipelined.h"

#include <initializer_list>

#include "steppe/ops/moe_dispatch/chunk_mark.h"
#include "steppe/ops/moe_dispatch/chunk_pass.h"
#include "steppe/ops/moe_dispatch/kept_gate_up.h"

namespace steppe::ops {
namespace {

// Calls work(tile) for the chunk's tiles, and part(0), part(1), … when so many sixths of them are done.
template <class Work, class Part>
void work_through(const ChunkPass& pass, int64_t chunk, std::initializer_list<size_t> sixths, Work work,
                  Part part) {
  const auto& tiles = pass.tiles(chunk);
  const auto* next = sixths.begin();
  for (size_t i = 0; i <= tiles.size(); ++i) {
    for (; next != sixths.end() && *next * tiles.size() / 6 <= i; ++next) part(next - sixths.begin());
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
        pass, chunk, {0, 3},
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
        [&](int64_t part) {
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
    comm::Pending arrives, returns;
    const auto send_x = [&](int64_t chunk) {
      const auto source = pass.source_in_slot_dy(chunk);
      pass.order(chunk);
      pass.gather_packed(source, x_NH, chunk);
      arrives = pass.dispatch(pass.slot_x(chunk), source, chunk);
    };
    const auto send_dy = [&](int64_t chunk, int half) { arrives = pass.dispatch_dy(dy_NH, chunk, half); };
    const auto return_dx = [&](int64_t chunk) {
      returns = pass.give_back(pass.source_in_slot_dy(chunk), pass.slot_x(chunk), chunk);
    };
    const auto take_back = [&](int64_t chunk) {
      const auto source = pass.source_in_slot_dy(chunk);
      pass.combine(grads.dx_NH, source, chunk, /*add=*/false);
      pass.scatter_weights(grads.dweights_Nk, source, chunk);
    };

    send_x(0);
    arrives.wait();
    send_dy(0, /*half=*/0);
    arrives.wait();
    send_dy(0, /*half=*/1);
    const auto helped = helpers.wait();
    arrives.wait();
    const int64_t last = pass.num_chunks() - 1;
    for (int64_t chunk = 0; chunk <= last; ++chunk) {
      const ChunkMark mark(chunk, pass.num_chunks());
      work_through(
          pass, chunk, {0, 2, 4, 5},
          [&](const Tile& of) {
            auto& tile = pass.tile;
            const int64_t rows = rows_of(of);
            pass.load_packed(chunk, of);
            pass.load_dy(chunk, of);
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
          // One at a time: each needs the room that the one before leaves.
          [&](int64_t part) {
            returns.wait();
            arrives.wait();
            if (part == 0) {
              if (chunk > 0) return_dx(chunk - 1);
            } else if (part == 1) {
              if (chunk > 0) take_back(chunk - 1);
              if (chunk < last) send_x(chunk + 1);
            } else if (chunk < last) {
              send_dy(chunk + 1, /*half=*/static_cast<int>(part) - 2);
            }
          });
      arrives.wait();
    }
    return_dx(last);
    returns.wait();
    take_back(last);
  }
  helpers.send_home(helped_grads, grads.experts);
}

}  // namespace steppe::ops
