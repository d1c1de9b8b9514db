#include "steppe/ops/expert_mlp/expert_mlp.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "steppe/base/error.h"
#include "steppe/kernels/grouped_matmul.h"
#include "steppe/kernels/row_bias.h"
#include "steppe/kernels/swiglu.h"
#include "steppe/memory/scope.h"
#include "steppe/ops/expert_mlp/tiles.h"

namespace steppe::ops {
namespace {

int64_t largest(const std::vector<Tile>& tiles) {
  int64_t rows = 0;
  for (const auto& tile : tiles) rows = std::max(rows, rows_of(tile));
  return rows;
}

// The caller's, or one for this call.
ExpertWorkspace workspace(const OpContext& context, const ExpertRows& rows, int64_t most, int64_t two_i,
                          bool kept) {
  const auto& given = rows.workspace;
  if (!given.act_TI.defined()) {
    return {kept ? at::Tensor{} : context.empty({most, two_i}), context.empty({most, two_i / 2})};
  }
  STEPPE_ASSERT(given.act_TI.size(0) >= most, "[expert_mlp] a workspace of {} rows for a tile of {}",
                given.act_TI.size(0), most);
  return given;
}

// Rows of a tile whose products are made together: all of it where the device multiplies groups at once, or
// else one expert's, so that its rows are still in the cache for the next product.
struct Run {
  std::span<const Segment> segments;
  int64_t first_expert, begin, num_rows;
  kernels::RowGroups groups;

  Run(std::span<const Segment> of, const at::Tensor& x)
      : segments(of),
        first_expert(of.front().expert),
        begin(of.front().begin),
        num_rows(of.back().begin + of.back().rows - begin),
        groups(rows_of_groups(), x) {}

  at::Tensor rows(const at::Tensor& x, int64_t first = 0) const {
    return x.narrow(0, begin - first, num_rows);
  }
  at::Tensor experts(const at::Tensor& x_E) const { return x_E.narrow(0, first_expert, groups.size()); }

 private:
  std::vector<int64_t> rows_of_groups() const {
    std::vector<int64_t> rows(segments.back().expert - first_expert + 1, 0);
    for (const auto& segment : segments) rows[segment.expert - first_expert] = segment.rows;
    return rows;
  }
};

std::vector<Run> runs_of(const Tile& tile, const ExpertRows& rows) {
  std::vector<Run> runs;
  const bool at_once = rows.at_once || kernels::multiplies_groups_at_once(rows.x_RH);
  const size_t length = at_once ? tile.size() : 1;
  for (size_t i = 0; i < tile.size(); i += length)
    runs.emplace_back(std::span(tile).subspan(i, length), rows.x_RH);
  return runs;
}

void count(const OpContext& context, const at::Tensor& rows, const at::Tensor& matrices) {
  context.counters->flops.add(FlopKind::kExpert, 2 * rows.size(0) * matrices.size(1) * matrices.size(2));
}

void multiply(const OpContext& context, const at::Tensor& out, const at::Tensor& a, const at::Tensor& b_E,
              const Run& run) {
  count(context, a, b_E);
  kernels::grouped_matmul(out, a, run.experts(b_E), run.groups);
}

// The gradient of matrices. Where it is fp32 and the operands are not, allocates one product, in `grads`.
void accumulate(const OpContext& context, const at::Tensor& accumulators_E, const at::Tensor& a,
                const at::Tensor& b, const Run& run) {
  count(context, a, accumulators_E);
  at::Tensor scratch;
  if (accumulators_E.scalar_type() != a.scalar_type()) {
    const memory::Scope scope(memory::Category::kGrads);
    scratch = context.empty(accumulators_E.sizes().slice(1), a.scalar_type());
  }
  kernels::grouped_matmul_accumulate(run.experts(accumulators_E), a, b, run.groups, scratch);
}

// Calls use(expert, begin, rows), rows within the run: for every expert where each has a bias of its own,
// once where they need not be told apart.
template <class Use>
void for_biases(const Run& run, const at::Tensor& biases, Use use) {
  if (!biases.defined()) return use(run.first_expert, 0, run.num_rows);
  for (const auto& segment : run.segments) use(segment.expert, segment.begin - run.begin, segment.rows);
}

kernels::SwigluOptions activation(const ExpertWeights& weights, int64_t expert) {
  const auto& biases = weights.gate_up_bias_E2I;
  return {weights.form, biases.defined() ? biases.select(0, expert) : biases};
}

}  // namespace

void expert_mlp_forward(const OpContext& context, const at::Tensor& y_RH, const ExpertRows& rows,
                        const ExpertWeights& weights, const at::Tensor& keep_gate_up_R2I, int64_t tile_rows) {
  const memory::Scope scope(memory::Category::kExpert);
  const int64_t total = rows.x_RH.size(0), two_i = weights.gate_up_E2IH.size(1);
  STEPPE_ASSERT(std::accumulate(rows.rows_of_expert.begin(), rows.rows_of_expert.end(), int64_t{0}) == total,
                "[expert_mlp] rows_of_expert sums to another number than the {} rows given", total);
  if (total == 0) return;
  const auto tiles = cut_tiles(rows.rows_of_expert, tile_rows);
  const int64_t most = largest(tiles);
  const auto [gate_up_tile, act_tile] = workspace(context, rows, most, two_i, keep_gate_up_R2I.defined());
  for (const auto& tile : tiles) {
    const int64_t first = tile.front().begin;
    for (const auto& run : runs_of(tile, rows)) {
      const auto gate_up =
          keep_gate_up_R2I.defined() ? run.rows(keep_gate_up_R2I) : run.rows(gate_up_tile, first);
      const auto act = run.rows(act_tile, first), y = run.rows(y_RH), w = run.rows(rows.weight_R);
      multiply(context, gate_up, run.rows(rows.x_RH), weights.gate_up_E2IH.transpose(1, 2), run);
      for_biases(run, weights.gate_up_bias_E2I, [&](int64_t expert, int64_t begin, int64_t n) {
        kernels::swiglu_forward(act.narrow(0, begin, n), gate_up.narrow(0, begin, n), w.narrow(0, begin, n),
                                activation(weights, expert));
      });
      multiply(context, y, act, weights.down_EHI.transpose(1, 2), run);
      if (!weights.down_bias_EH.defined()) continue;
      for_biases(run, weights.down_bias_EH, [&](int64_t expert, int64_t begin, int64_t n) {
        kernels::add_row_bias(y.narrow(0, begin, n), weights.down_bias_EH.select(0, expert),
                              w.narrow(0, begin, n));
      });
    }
  }
}

void expert_mlp_backward(const OpContext& context, const ExpertBackward& args) {
  const memory::Scope scope(memory::Category::kExpert);
  const auto& rows = args.rows;
  const int64_t total = rows.x_RH.size(0), two_i = args.weights.gate_up_E2IH.size(1);
  if (total == 0) return;
  const bool kept = args.kept_gate_up_R2I.defined();
  const auto tiles = cut_tiles(rows.rows_of_expert, args.tile_rows);
  const int64_t most = largest(tiles);
  const auto [gate_up_tile, act_tile] = workspace(context, rows, most, two_i, kept);
  const auto& weights = args.weights;
  for (const auto& tile : tiles) {
    const int64_t first = tile.front().begin;
    for (const auto& run : runs_of(tile, rows)) {
      const auto gate_up = kept ? run.rows(args.kept_gate_up_R2I) : run.rows(gate_up_tile, first);
      const auto act = run.rows(act_tile, first), x = run.rows(rows.x_RH), dy = run.rows(args.dy_RH);
      const auto w = run.rows(rows.weight_R), dw = run.rows(args.dweight_R);
      if (!kept) multiply(context, gate_up, x, weights.gate_up_E2IH.transpose(1, 2), run);
      multiply(context, act, dy, weights.down_EHI, run);
      for_biases(run, weights.gate_up_bias_E2I, [&](int64_t expert, int64_t begin, int64_t n) {
        const auto gu = gate_up.narrow(0, begin, n);
        kernels::swiglu_backward_inplace(gu, act.narrow(0, begin, n), w.narrow(0, begin, n),
                                         dw.narrow(0, begin, n), activation(weights, expert));
        if (weights.gate_up_bias_E2I.defined())
          kernels::add_column_sums(args.grads.gate_up_bias_E2I.select(0, expert), gu, {});
      });
      if (weights.down_bias_EH.defined()) {
        for_biases(run, weights.down_bias_EH, [&](int64_t expert, int64_t begin, int64_t n) {
          const auto part = dy.narrow(0, begin, n);
          kernels::add_row_dots(dw.narrow(0, begin, n), part, weights.down_bias_EH.select(0, expert));
          kernels::add_column_sums(args.grads.down_bias_EH.select(0, expert), part, w.narrow(0, begin, n));
        });
      }
      accumulate(context, args.grads.down_EHI, dy, act, run);
      accumulate(context, args.grads.gate_up_E2IH, gate_up, x, run);
      multiply(context, dy, gate_up, weights.gate_up_E2IH, run);
    }
  }
}

}  // namespace steppe::ops
