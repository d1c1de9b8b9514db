#include "steppe/ops/moe_dispatch/dispatch_plan.h"

#include <algorithm>
#include <numeric>

#include "steppe/base/error.h"

namespace steppe::ops {
namespace {

// ⌊offset·rows/load⌋. Products stay below 2^53, where a quotient of whole numbers never rounds up to the next
// one.
int64_t cut(int64_t offset, int64_t rows, int64_t load) {
  return static_cast<int64_t>(static_cast<double>(offset) * static_cast<double>(rows) /
                              static_cast<double>(load));
}

// Routes to every expert in a chunk, over all sources: [chunk][expert].
std::vector<int64_t> loads_of_chunks(const RouteCounts& counts) {
  const int64_t chunks = counts.split.num_chunks, size = chunks * counts.num_experts;
  std::vector<int64_t> loads(size, 0);
  for (int64_t source = 0; source < counts.num_sources(); ++source) {
    const int64_t* own = counts.routes.data() + source * size;
    for (int64_t i = 0; i < size; ++i) loads[i] += own[i];
  }
  return loads;
}

int64_t largest_number_of_routes(const RouteCounts& counts) {
  const int64_t size = counts.split.num_chunks * counts.num_experts;
  int64_t largest = 0;
  for (auto own = counts.routes.begin(); own != counts.routes.end(); own += size)
    largest = std::max(largest, std::accumulate(own, own + size, int64_t{0}));
  return largest;
}

// Rows that each rank gets of a chunk under the whole micro-batch's assignment.
std::vector<int64_t> rows_under_whole(const RouteCounts& counts, const DispatchPlan& plan, int64_t chunk,
                                      std::span<const int64_t> load_E) {
  std::vector<int64_t> rows(plan.degree, 0);
  const int64_t local = plan.num_experts / plan.degree;
  for (int64_t e = 0; e < plan.num_experts; ++e)
    if (plan.whole.index_E[e] < 0) rows[e / local] += load_E[e];
  for (const auto& moved : plan.whole.moved)
    for (const auto& piece : moved.pieces)
      for (int64_t source = 0; source < plan.degree; ++source) {
        const int64_t n = counts.of(source, chunk)[moved.expert];
        rows[piece.rank] += cut(piece.end, n, moved.load) - cut(piece.begin, n, moved.load);
      }
  return rows;
}

std::vector<int64_t> rows_of(const Assignment& assignment, const DispatchPlan& plan,
                             std::span<const int64_t> load_E) {
  std::vector<int64_t> rows(plan.degree, 0);
  const int64_t local = plan.num_experts / plan.degree;
  for (int64_t e = 0; e < plan.num_experts; ++e)
    if (assignment.index_E[e] < 0) rows[e / local] += load_E[e];
  for (const auto& moved : assignment.moved)
    for (const auto& piece : moved.pieces) rows[piece.rank] += piece.end - piece.begin;
  return rows;
}

int64_t largest(const std::vector<int64_t>& values) {
  return *std::max_element(values.begin(), values.end());
}

LeastLoadedOptions options_of_chunk(const LeastLoadedOptions& options, int64_t num_chunks) {
  auto own = options;
  own.imbalance_threshold = 0;
  own.min_rows = 1 + (std::max<int64_t>(1, options.min_rows) - 1) / num_chunks;
  return own;
}

}  // namespace

int64_t DispatchPlan::num_replanned() const {
  return std::count_if(chunks.begin(), chunks.end(),
                       [](const ChunkPlan& chunk) { return chunk.own.has_value(); });
}

int64_t DispatchPlan::bound(const DispatchPlanOptions& options) const {
  const int64_t sure = degree * chunk_rows();
  if (helpers_capped || options.replan_threshold <= 0 || options.least_loaded.max_tokens_factor != 1.0)
    return sure;
  const double planned = options.replan_threshold * static_cast<double>(chunk_rows());
  const auto m = static_cast<double>(options_of_chunk(options.least_loaded, num_chunks()).min_rows);
  const double pieces = static_cast<double>(chunk_rows()) + static_cast<double>(degree - 1) * m;
  const double most = std::max(planned, pieces);
  return most < static_cast<double>(sure) ? static_cast<int64_t>(most) : sure;
}

DispatchPlan plan_dispatch(const RouteCounts& counts, int64_t degree, int64_t top_k,
                           const DispatchPlanOptions& options) {
  const int64_t num_experts = counts.num_experts, num_chunks = counts.split.num_chunks;
  STEPPE_ASSERT(num_experts % degree == 0 &&
                    static_cast<int64_t>(counts.routes.size()) == degree * num_chunks * num_experts,
                "[dispatch_plan] {} counts of {} experts in {} chunks do not fit a group of {}",
                counts.routes.size(), num_experts, num_chunks, degree);
  DispatchPlan plan{.degree = degree, .num_experts = num_experts, .top_k = top_k};
  const int64_t tokens = largest_number_of_routes(counts) / top_k;
  plan.chunk_tokens = (tokens + num_chunks - 1) / num_chunks;
  plan.helpers = Helpers(degree, num_experts);
  plan.helpers_capped = options.least_loaded.max_helpers.has_value();
  const auto chunk_loads = loads_of_chunks(counts);
  std::vector<int64_t> load_E(num_experts, 0);
  for (size_t i = 0; i < chunk_loads.size(); ++i) load_E[i % num_experts] += chunk_loads[i];
  plan.whole = assign_least_loaded(load_E, degree, options.least_loaded, plan.helpers);

  const double threshold = options.replan_threshold * static_cast<double>(plan.chunk_rows());
  for (int64_t chunk = 0; chunk < num_chunks; ++chunk) {
    const auto chunk_load_E = std::span(chunk_loads).subspan(chunk * num_experts, num_experts);
    plan.chunks.push_back({std::nullopt, rows_under_whole(counts, plan, chunk, chunk_load_E)});
    auto& in_force = plan.chunks.back();
    if (options.replan_threshold <= 0 || static_cast<double>(largest(in_force.rows_of_rank)) <= threshold)
      continue;
    auto helpers = plan.helpers;
    auto own = assign_least_loaded(chunk_load_E, degree, options_of_chunk(options.least_loaded, num_chunks),
                                   helpers);
    auto rows = rows_of(own, plan, chunk_load_E);
    if (largest(rows) >= largest(in_force.rows_of_rank)) continue;
    plan.helpers = std::move(helpers);
    in_force = {std::move(own), std::move(rows)};
  }
  return plan;
}

void cut_cell(const RouteCounts& counts, const DispatchPlan& plan, const MovedExpert& moved, int64_t chunk,
              int64_t source, std::vector<CellPart>& parts) {
  parts.clear();
  const int64_t n = counts.of(source, chunk)[moved.expert];
  if (!plan.chunks[chunk].own) {
    for (const auto& piece : moved.pieces)
      parts.push_back({cut(piece.begin, n, moved.load), cut(piece.end, n, moved.load)});
    return;
  }
  int64_t before = 0;  // of earlier sources
  for (int64_t earlier = 0; earlier < source; ++earlier) before += counts.of(earlier, chunk)[moved.expert];
  const auto within = [&](int64_t offset) { return std::clamp(offset - before, int64_t{0}, n); };
  for (const auto& piece : moved.pieces) parts.push_back({within(piece.begin), within(piece.end)});
}

}  // namespace steppe::ops
