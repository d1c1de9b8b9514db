// Who works on which rows in every chunk of a layer's micro-batch: a pure host function of the route counts,
// the same on every rank of the expert group. No Torch.
//
// One assignment is made for the whole micro-batch. Where it cuts an expert's load l at offset Q, each cell
// (source, expert, chunk) of n routes, ordered by token then listing, is cut at ⌊Q·n/l⌋: every size is a host
// number. A chunk in which some rank would receive more than replan_threshold·k·c_eff rows under the
// assignment in force is assigned by itself, with min_rows/K and whatever the balance; it cuts an expert's
// rows of that chunk at Q itself, counted source by source, so that its loads are exactly the assignment's.
// The better of the two stays in force. With any number of helpers and α = 1 no rank then receives, in any
// chunk, more than
//   max(replan_threshold, 1 + (E_p − 1)·m'/(k·c_eff))·k·c_eff rows, m' = max(1, ⌈m/K⌉);
// with helpers capped only E_p·k·c_eff is sure.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "steppe/ops/moe_dispatch/least_loaded.h"
#include "steppe/ops/moe_dispatch/route_counts.h"

namespace steppe::ops {

struct DispatchPlanOptions {
  LeastLoadedOptions least_loaded;
  double replan_threshold = 1.2;  // 1 + ε; 0: no chunk is planned by itself
};

struct ChunkPlan {
  std::optional<Assignment> own;      // instead of the whole micro-batch's
  std::vector<int64_t> rows_of_rank;  // what each rank receives
};

struct DispatchPlan {
  int64_t degree = 1, num_experts = 0, top_k = 1;
  int64_t chunk_tokens = 0;  // c_eff
  Assignment whole;
  std::vector<ChunkPlan> chunks;
  Helpers helpers{1, 1};
  bool helpers_capped = false;

  int64_t num_chunks() const { return static_cast<int64_t>(chunks.size()); }
  const Assignment& assignment(int64_t chunk) const { return chunks[chunk].own ? *chunks[chunk].own : whole; }
  int64_t num_replanned() const;
  int64_t chunk_rows() const { return top_k * chunk_tokens; }  // of the fullest source: k·c_eff
  // What rows_of_rank can never exceed, given the options of plan_dispatch.
  int64_t bound(const DispatchPlanOptions& options) const;
};

DispatchPlan plan_dispatch(const RouteCounts& counts, int64_t degree, int64_t top_k,
                           const DispatchPlanOptions& options);

// A run of a cell's routes, by position: [begin, end).
struct CellPart {
  int64_t begin, end;
  int64_t rows() const { return end - begin; }
};

// The parts of the cell (source, moved.expert, chunk) that its pieces get; parts has an entry for each of
// them.
void cut_cell(const RouteCounts& counts, const DispatchPlan& plan, const MovedExpert& moved, int64_t chunk,
              int64_t source, std::vector<CellPart>& parts);

}  // namespace steppe::ops
