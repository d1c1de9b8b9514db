#include "steppe/plan/budget_sizes.h"

#include <algorithm>
#include <numeric>

#include "steppe/memory/host_arena.h"
#include "steppe/ops/moe_dispatch/chunk_sizes.h"
#include "steppe/ops/moe_dispatch/dispatch_plan.h"
#include "steppe/ops/moe_dispatch/route_schedule.h"
#include "steppe/plan/supposed_batch.h"
#include "steppe/plan/supposed_routing.h"
#include "steppe/train/configure.h"

namespace steppe::plan {
namespace {

using layout::Axis;

constexpr int64_t kAlignment = 16;  // elements, of a slice of a unit

int64_t rounded_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// Rows of the rank's own experts or of foreign ones, whichever are more, where all come in one chunk.
int64_t rows_at_once(const ops::RouteCounts& counts, const ops::DispatchPlan& plan, int64_t rank) {
  if (counts.split.num_chunks > 1) return 0;
  const auto rows = ops::schedule_routes(counts, plan, /*chunk=*/0, rank).rows_of_expert;
  const auto foreign = rows.begin() + plan.num_experts / plan.degree;
  return std::max(std::accumulate(rows.begin(), foreign, int64_t{0}),
                  std::accumulate(foreign, rows.end(), int64_t{0}));
}

// As the dispatch plans it, when every source of the group routes like this one.
RoutedRows rows_by_profile(const recipe::RunConfig& run, const Sizes& s) {
  RoutedRows most;
  const auto supposed = supposed_routing(run, s.shape.model, s.shape.layout.rank());
  auto balanced = ops::balanced_routing({s.E, s.k, true});
  ops::RoutingSource& routing = supposed ? *supposed : balanced;
  const auto split = ops::split_tokens(s.step.dispatch, s.n);
  most.num_chunks = split.num_chunks;
  most.chunk_sent = s.k * split.tokens(0, s.n);
  const int64_t local = s.E / s.Ep, own = s.shape.layout.index_in_group(Axis::kExpert);
  const bool alike = !run.plan.routing_profile.ends_with(".jsonl");  // all layers
  for (int64_t layer = 0; layer < s.L; ++layer) {
    if (s.shape.model.is_dense_layer(layer)) continue;
    const auto counts = routed_alike(routing, s.shape.model, layer, split, s.n, s.Ep);
    const auto plan = ops::plan_dispatch(counts, s.Ep, s.k, ops::plan_options(s.step.dispatch));
    int64_t received = 0;
    for (const auto& chunk : plan.chunks) received += chunk.rows_of_rank[own];
    most.received = std::max(most.received, received);
    most.at_once = std::max(most.at_once, rows_at_once(counts, plan, own));
    most.slot = std::max(most.slot, ops::slot_rows(plan, own));
    most.tile = std::max(most.tile, ops::tile_rows_of(plan, s.expert_tile_rows));
    most.helped = std::max(most.helped, static_cast<int64_t>(plan.helpers.experts_of(own).size()));
    most.moves = most.moves || plan.helpers.most() > 0;
    const int64_t layers = alike ? num_moe_layers(s) : 1;
    for (int64_t helper = 0; helper < s.Ep; ++helper)
      for (const int64_t expert : plan.helpers.experts_of(helper)) {
        most.borrowed += helper == own ? layers : 0;
        most.lent += expert / local == own ? layers : 0;
      }
    if (alike) break;
  }
  most.sends_home = most.moves;
  return most;
}

// Whatever the router does.
RoutedRows rows_at_most(const Sizes& s) {
  auto rows = s.expected;
  rows.received = rows.at_once = s.Ep * s.n * s.k;
  rows.slot = s.Ep * rows.chunk_sent;
  if (s.step.dispatch.kind != ops::DispatchKind::kEp && s.Ep > 1) {
    rows.helped = s.step.dispatch.plan.least_loaded.max_helpers.value_or(s.E - s.E / s.Ep);
    rows.moves = rows.sends_home = true;
  }
  return rows;
}

std::vector<int64_t> tokens_of(const recipe::RunConfig& run, const Sizes& s) {
  return tokens_of_micro_batches(run, s.shape.layout_config, s.shape.layout.group_index(Axis::kSequence));
}

void set_tokens(const recipe::RunConfig& run, int64_t tokens, Sizes& s, const Sizes* routed_alike) {
  s.num_documents = tokens / run.training.seq_length;
  s.n = (tokens + s.D - 1) / s.D, s.row = s.n * s.D;
  const int64_t boundary = memory::HostArena::aligned(s.n * s.H * s.b);
  s.host_boundaries = boundary == 0 ? 0 : std::min(s.L, s.offload.boundary_host_bytes / boundary);
  if (routed_alike) {
    s.expected = routed_alike->expected, s.guaranteed = routed_alike->guaranteed;
  } else if (num_moe_layers(s) > 0) {
    s.expected = rows_by_profile(run, s);
    s.guaranteed = rows_at_most(s);
  }
}

}  // namespace

Sizes sizes_of(const recipe::RunConfig& run, int rank, const DryRunOptions& options,
               const Sizes* routed_alike) {
  Sizes s{train::RankShape(run, rank, options.world_size), train::step_config(run)};
  const auto& m = s.shape.model;
  const auto& layout = s.shape.layout;
  s.num_threads = options.num_threads, s.as_cuda = options.as_cuda;
  s.b = static_cast<int64_t>(c10::elementSize(train::compute_dtype(run)));
  s.W = options.world_size, s.D = layout.degree(Axis::kSequence), s.Ep = layout.degree(Axis::kExpert),
  s.P = layout.degree(Axis::kVocab);
  s.num_micro_batches = num_micro_batches(run, s.shape.layout_config);
  s.longest_document = run.training.seq_length + s.D - 1;
  s.L = m.num_hidden_layers, s.H = m.hidden_size, s.E = m.num_experts, s.k = m.num_experts_per_tok,
  s.I = m.moe_intermediate_size, s.V = m.vocab_size;
  s.vocab_rows = layout::even_part(s.V, s.P, layout.index_in_group(Axis::kVocab)).size();
  s.d = m.head_dim, s.q_width = m.num_attention_heads * s.d, s.kv_width = m.num_key_value_heads * s.d;
  s.heads_each = m.num_attention_heads / s.D;
  s.kv_heads_each = std::max<int64_t>(1, m.num_key_value_heads / s.D);
  s.state = train::state_options(run);
  s.g = s.state.gradient_itemsize();
  s.frozen = frozen_elements(s.shape, s.state);
  s.offload = train::offload_config(run, m, s.shape.layout_config, options.attention_output_bytes);
  const auto& dispatch = s.step.dispatch;
  s.expert_tile_rows = dispatch.tile_rows > 0 || dispatch.tile_bytes == 0
                           ? dispatch.tile_rows
                           : std::max<int64_t>(1, dispatch.tile_bytes / (3 * s.I * s.b));
  const auto tokens = tokens_of(run, s);  // full ones, then what is left
  const int64_t largest = tokens.empty() ? 0 : tokens.front();
  s.is_last = tokens.empty() || tokens.back() == largest;
  s.adds_to_gradients = tokens.size() > 1 && tokens[1] == largest;
  set_tokens(run, largest, s, routed_alike);
  return s;
}

std::optional<Sizes> sizes_of_shorter(const recipe::RunConfig& run, const Sizes& largest) {
  if (largest.is_last) return std::nullopt;
  Sizes s = largest;
  s.adds_to_gradients = s.is_last = true;
  set_tokens(run, tokens_of(run, s).back(), s, nullptr);
  return s;
}

int64_t dense_unit(const Sizes& s, int64_t layer) {
  const auto& m = s.shape.model;
  int64_t elements = 2 * s.H + s.H * (2 * s.q_width + 2 * s.kv_width), slices = 6;
  if (m.qk_norm == model::QkNorm::kHead) elements += 2 * s.d, slices += 2;
  if (m.qk_norm == model::QkNorm::kFull) elements += s.q_width + s.kv_width, slices += 2;
  if (m.is_dense_layer(layer)) {
    elements += 3 * s.H * m.intermediate_size, slices += 2;
  } else {
    elements += s.E * s.H + 3 * s.H * m.shared_expert_intermediate_size, slices += 3;
  }
  return rounded_up(elements + slices * (kAlignment - 1), kAlignment * s.W);
}

int64_t expert_unit(const Sizes& s) {
  return rounded_up(s.E / s.Ep * 3 * s.H * s.I + kAlignment - 1, kAlignment * (s.W / s.Ep));
}

int64_t table_unit(const Sizes& s) {
  return rounded_up(s.vocab_rows * s.H, kAlignment * (s.W / s.P));
}

}  // namespace steppe::plan
