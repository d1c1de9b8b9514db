// Expert dispatch: every token's rows travel to the ranks that hold its experts, through them, and back,
// where a token's k results are added. This header is the contract of all kinds.
//
//   y [N, H] += Σ_j expert_{ids[t,j]}(x_t) · weights[t,j]
//
// `ep`: order by destination, one all-to-all-v out, the experts, one back.
// `llep`: the same with the rows shared out by load: what an overloaded rank cannot take goes to helpers, to
// which the expert's weights travel once per pass, and from which its weight gradient comes home
// (least_loaded.h). `pipelined_llep`: the tokens in K chunks; while the experts work on one, the chunk before
// leaves and the next one arrives (pipelined.h); on a group of one the chunks take turns
// (chunks_in_turn.h). With one chunk it is `llep`. Shapes: x [N, H] in the working
// dtype, ids [N, k] int32, weights [N, k] fp32; a token may list an expert more than once, each listing is a
// route of its own. Experts are dealt to the E_p ranks of the group in order, E/E_p each. Collective over the
// expert group, one call per layer and pass, in the same order on all its ranks; ranks may have any N, 0
// included. Host syncs: none here; the counts come from exchange_route_counts, one host exchange per layer
// and micro-batch.
// Allocates in category `dispatch`, with n = N·k routes sent and R received, h bytes a row and p a row packed
// with its routing weight (packed_rows.h), for `ep` and `llep`: indices 8·n bytes (`llep` 20·n where
// something moves); forward the send buffer n·p, the receive buffer R·p, and its regrouping by expert
// R·(h + 4), then two of R·h; never more than two of them at once (with E_p = 1 only n·(h + 4)); backward the
// same for x, a like pair of h bytes a row for dy, the weights' gradients 4·R, and on the way back R·p and
// n·p. In category `expert`: see expert_mlp.h. With `saved` the experts' results take another R·h, and what
// stays until the backward (x, weights, indices, gate and up; of chunks gate and up alone) is booked to
// `saved`. Weights of foreign experts in category `gathered`; their gradients, and one more expert's where
// they come home, in `grads`. `pipelined_llep`: see pipelined.h. Keeps nothing sized by the routing between
// the passes, unless `saved` is given. Deterministic: results are added in the order j = 0 … k−1, in fp32;
// gradients of helpers by rank. Source: GShard (Lepikhin et al. 2020), as in Megatron Core's all-to-all
// dispatcher; arXiv 2601.17111.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "steppe/comm/communicator.h"
#include "steppe/ops/context.h"
#include "steppe/ops/expert_mlp/expert_mlp.h"
#include "steppe/ops/moe_dispatch/dispatch_plan.h"
#include "steppe/ops/moe_dispatch/route_counts.h"

namespace steppe::ops {

// counts: this rank's, [chunk][expert], for each chunk of `split`.
RouteCounts exchange_route_counts(comm::Communicator& expert_group, std::span<const int64_t> counts_KE,
                                  const ChunkSplit& split = {});

// What was decided for a layer and micro-batch; pinned from its first forward to its backward.
struct PinnedRouting {
  at::Tensor ids_Nk;      // int32
  at::Tensor weights_Nk;  // fp32
  RouteCounts counts;
};

// Kept between the passes when nothing is recomputed.
struct DispatchSaved {
  at::Tensor slot_of_route, route_of_slot;
  at::Tensor x_RH, weight_R, gate_up_R2I;
};

enum class DispatchKind { kEp, kLlep, kPipelinedLlep };

struct DispatchOptions {
  int64_t tile_rows = 0;  // rows of an expert tile; 0: as tile_bytes say
  DispatchKind kind = DispatchKind::kEp;
  DispatchPlanOptions plan{};   // of all kinds but ep; see plan_options
  int64_t token_budget = 4096;  // c: tokens per rank and chunk, of pipelined_llep
  int64_t max_chunks = 10;      // K_max: wins over the budget
  Membership membership = Membership::kStrided;
  int64_t tile_bytes = 0;  // of a tile's gate, up and activation; 0: all rows at once (pipelined_llep:
                           // derived from the chunk)
};

// Rows of an expert tile, by either option; 0: neither is given.
int64_t tile_rows(const DispatchOptions& options, const ExpertWeights& weights);

// How the kind cuts a micro-batch, given the largest N of the group, and what it lets the plan move: `ep`
// nothing, `llep` by a plan of the whole micro-batch alone.
ChunkSplit split_tokens(const DispatchOptions& options, int64_t largest_num_tokens);
DispatchPlanOptions plan_options(const DispatchOptions& options);

// A layer's dispatch of a micro-batch on this rank: what its two passes share.
struct DispatchLayer {
  const OpContext& context;
  comm::Communicator& expert_group;
  const PinnedRouting& routing;
  const ExpertWeights& weights;
  const DispatchOptions& options;
};

struct DispatchGradients {
  at::Tensor dx_NH;         // written; may be x
  at::Tensor dweights_Nk;   // written
  ExpertGradients experts;  // accumulated
};

// Backward recomputes gate and up, unless `saved` is given, which is consumed.
void dispatch_forward(const DispatchLayer& layer, const at::Tensor& y_NH, const at::Tensor& x_NH,
                      DispatchSaved* saved);
void dispatch_backward(const DispatchLayer& layer, const DispatchGradients& grads, const at::Tensor& dy_NH,
                       const at::Tensor& x_NH, DispatchSaved* saved);

}  // namespace steppe::ops
