#include <numeric>
#include <vector>

#include "steppe/comm/collectives.h"
#include "steppe/kernels/pointwise.h"
#include "steppe/kernels/softmax_rows.h"
#include "steppe/layout/layout.h"
#include "steppe/ops/product.h"
#include "steppe/ops/vocab_loss/vocab_loss_kinds.h"

namespace steppe::ops {
namespace {

int64_t sum(std::span<const int64_t> values) {
  return std::accumulate(values.begin(), values.end(), int64_t{0});
}

at::Tensor gather_rows(const OpContext& context, comm::Communicator& group, const at::Tensor& rows,
                       std::span<const int64_t> rows_of_rank) {
  if (group.size() == 1) return rows;
  auto sizes = rows.sizes().vec();
  sizes[0] = sum(rows_of_rank);
  const auto all = context.empty(sizes, rows.scalar_type());
  comm::all_gather_rows(group, all, rows, rows_of_rank).wait();
  return all;
}

// target [rows of this rank, …] (+)= Σ_p (rank p's partial rows of this rank), in fp32 and rank order.
void reduce_scatter_rows(const OpContext& context, comm::Communicator& group, const at::Tensor& target,
                         const at::Tensor& partial, std::span<const int64_t> rows_of_rank, bool accumulate) {
  const int64_t own = rows_of_rank[group.rank()], degree = group.size(), width = partial.size(1);
  const auto parts = context.empty({degree * own, width}, partial.scalar_type());
  const std::vector<int64_t> each(degree, own);
  comm::all_to_all_rows(group, parts, partial, each, rows_of_rank).wait();
  std::vector<at::Tensor> flat;
  for (int64_t p = 0; p < degree; ++p) flat.push_back(parts.narrow(0, p * own, own).view({-1}));
  const bool in_place = accumulate && target.scalar_type() == at::kFloat;
  const auto total = in_place ? target : context.empty(target.sizes(), at::kFloat);
  if (!in_place) kernels::fill_zero(total);
  kernels::add_parts_in_order(total.view({-1}), flat);
  if (!in_place) kernels::copy_cast(target, total);
}

at::Tensor row_statistics(const OpContext& context, comm::Communicator& group, const at::Tensor& logits,
                          const at::Tensor& targets, int64_t first_column) {
  const int64_t rows = logits.size(0), degree = group.size();
  const auto parts = context.empty({degree, rows, 3}, at::kFloat);
  const auto own = parts.select(0, group.rank());
  kernels::logit_statistics(own, logits, targets, first_column);
  if (degree == 1) return own;
  const std::vector<int64_t> each(degree, rows);
  comm::all_gather_rows(group, parts.view({degree * rows, 3}), own, each).wait();
  const auto merged = context.empty({rows, 3}, at::kFloat);
  kernels::merge_statistics(merged, parts);
  return merged;
}

}  // namespace

void vocab_parallel_loss(const VocabLossCall& call) {
  const auto& [context, group, in, out, shape] = call;
  const auto x = gather_rows(context, group, in.x_NH, in.rows_of_rank);
  const auto targets = gather_rows(context, group, in.targets_N, in.rows_of_rank);
  const int64_t rows = x.size(0), v = in.weight_vH.size(0), hidden = x.size(1);
  auto logits = context.empty({rows, v});
  call.project(logits, x, in.weight_vH);
  const auto stats = row_statistics(context, group, logits, targets, in.first_column);
  const int64_t before = sum(in.rows_of_rank.first(group.rank()));
  call.add_loss(out.row_loss_N, stats.narrow(0, before, in.x_NH.size(0)), in.targets_N);
  if (!out.dx_NH.defined()) return;

  const auto row_weight = gather_rows(context, group, in.row_weight_N, in.rows_of_rank);
  call.to_gradient(logits, stats, targets, row_weight, in.first_column);
  product_accumulate(context, FlopKind::kVocab, out.grad_weight_vH, logits.t(), x);
  if (group.size() == 1) return product(context, FlopKind::kVocab, out.dx_NH, logits, in.weight_vH);
  const auto partial = context.empty({rows, hidden});
  product(context, FlopKind::kVocab, partial, logits, in.weight_vH);
  logits.reset();
  reduce_scatter_rows(context, group, out.dx_NH, partial, in.rows_of_rank, /*accumulate=*/false);
}

void full_loss(const VocabLossCall& call) {
  const auto& [context, group, in, out, shape] = call;
  std::vector<int64_t> columns_of_rank;
  for (int64_t p = 0; p < group.size(); ++p) {
    columns_of_rank.push_back(layout::even_part(in.vocab_size, group.size(), p).size());
  }
  const auto weight = gather_rows(context, group, in.weight_vH, columns_of_rank);
  const int64_t rows = in.x_NH.size(0), hidden = in.x_NH.size(1);
  const auto logits = context.empty({rows, in.vocab_size});
  const auto stats = context.empty({rows, 3}, at::kFloat);
  call.project(logits, in.x_NH, weight);
  if (call.wants_gradient()) {
    kernels::statistics_and_gradient(stats, logits, in.targets_N, in.row_weight_N, 0, shape);
  } else {
    kernels::logit_statistics(stats, logits, in.targets_N, 0);
  }
  call.add_loss(out.row_loss_N, stats, in.targets_N);
  if (!call.wants_gradient()) return;

  product(context, FlopKind::kVocab, out.dx_NH, logits, weight);
  const bool whole = group.size() == 1;
  const auto grad = whole ? out.grad_weight_vH : context.empty({in.vocab_size, hidden}, at::kFloat);
  if (!whole) kernels::fill_zero(grad);
  product_accumulate(context, FlopKind::kVocab, grad, logits.t(), in.x_NH);
  if (!whole) {
    reduce_scatter_rows(context, group, out.grad_weight_vH, grad, columns_of_rank, /*accumulate=*/true);
  }
}

}  // namespace steppe::ops
