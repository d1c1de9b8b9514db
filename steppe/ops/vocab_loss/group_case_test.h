// What the tests of this folder share: a batch over the ranks of a vocabulary group, what fp64 says about it,
// and one rank's run of it.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <functional>
#include <mutex>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "steppe/comm/test_world.h"
#include "steppe/layout/layout.h"
#include "steppe/memory/scope.h"
#include "steppe/ops/vocab_loss/vocab_loss.h"
#include "steppe/ops/vocab_loss/vocab_loss_reference.h"

namespace steppe::ops::testing {

struct GroupCase {
  std::vector<int64_t> rows_of_rank;
  int64_t hidden = 19, vocab = 53;
  at::ScalarType dtype = at::kFloat;
  double logit_scale = 1;
  double ignored = 0.2;  // share of the rows
  bool host_targets = false;

  int degree() const { return static_cast<int>(rows_of_rank.size()); }
  int64_t rows() const { return std::accumulate(rows_of_rank.begin(), rows_of_rank.end(), int64_t{0}); }
};

// Of the whole group.
struct GroupBatch {
  at::Tensor x_RH, targets_R, row_weight_R, weight_VH, start_grad_VH;
};

inline GroupBatch make_batch(const GroupCase& of) {
  at::manual_seed(static_cast<uint64_t>(of.rows() * 100 + of.degree()));
  const double scale = of.logit_scale / std::sqrt(static_cast<double>(of.hidden));
  auto targets = at::randint(of.vocab, {of.rows()}, at::kInt);
  targets.masked_fill_(at::rand({of.rows()}) < of.ignored, -100);
  return {at::randn({of.rows(), of.hidden}).to(of.dtype), targets, at::rand({of.rows()}) + 0.5,
          (at::randn({of.vocab, of.hidden}) * scale).to(of.dtype), at::randn({of.vocab, of.hidden})};
}

inline VocabLossReference expected_of(const GroupBatch& batch) {
  return vocab_loss_reference(batch.x_RH, batch.targets_R, batch.row_weight_R, batch.weight_VH);
}

// One rank's part of a case, on `device`, and what came of it.
struct RankRun {
  RankRun(const GroupCase& of, const GroupBatch& batch, int rank, at::Device device = at::kCPU) : of(of) {
    const auto& rows = of.rows_of_rank;
    begin = std::accumulate(rows.begin(), rows.begin() + rank, int64_t{0});
    columns = layout::even_part(of.vocab, of.degree(), rank);
    const auto own = [&](const at::Tensor& all) {
      return all.narrow(0, begin, rows[rank]).contiguous().to(device);
    };
    x = own(batch.x_RH);
    targets = own(batch.targets_R);
    row_weight = own(batch.row_weight_R);
    weight = batch.weight_VH.narrow(0, columns.begin, columns.size()).contiguous().to(device);
    grad = batch.start_grad_VH.narrow(0, columns.begin, columns.size()).clone().to(device);
    loss = at::ones({1}, at::TensorOptions().dtype(at::kDouble).device(device));
    row_loss = at::full({rows[rank]}, -7, at::TensorOptions().dtype(at::kFloat).device(device));
    dx = at::full_like(x, -7);
    context = {device, of.dtype, &counters};
    if (!of.host_targets) return;
    const auto* all = batch.targets_R.const_data_ptr<int32_t>();
    host_targets.assign(all + begin, all + begin + rows[rank]);
    int64_t at = 0;
    for (const int64_t n : rows) {
      targets_of_rank.push_back(std::count_if(all + at, all + at + n, [](int32_t t) { return t >= 0; }));
      at += n;
    }
  }

  // Also measures: bytes of the category at its peak, bytes sent.
  void run(const VocabLossOptions& options, comm::Communicator& group, bool gradient = true) {
    auto& ledger = memory::current_ledger();
    const int64_t before = group.wire_bytes();
    ledger.reset_peak();
    vocab_loss(options, context, group,
               {x, targets, row_weight, weight, of.vocab, columns.begin, of.rows_of_rank, host_targets,
                targets_of_rank},
               {loss, row_loss, gradient ? dx : at::Tensor(), gradient ? grad : at::Tensor()});
    vocab_bytes = ledger.peak_by_own_category()[static_cast<int>(memory::Category::kVocab)];
    wire_bytes = group.wire_bytes() - before;
  }

  const GroupCase& of;
  int64_t begin = 0;
  layout::Interval columns;
  Counters counters;
  OpContext context;
  at::Tensor x, targets, row_weight, weight, grad, loss, row_loss, dx;
  std::vector<int32_t> host_targets;
  std::vector<int64_t> targets_of_rank;
  int64_t vocab_bytes = 0, wire_bytes = 0;
};

// Runs a body on every rank of the case, as threads.
inline void on_group(const GroupCase& of,
                     const std::function<void(int rank, comm::Communicator& group)>& body) {
  comm::run_ranks(of.degree(), [&](int rank, const auto& store) {
    const auto group = comm::make_world(rank, of.degree(), store);
    body(rank, *group);
  });
}

inline VocabLossOptions options_of(VocabLossKind kind, int64_t tile_tokens = 0,
                                   Circulate circulate = Circulate::kAuto) {
  VocabLossOptions options(kind);
  options.tile_tokens = tile_tokens;
  options.circulate = circulate;
  return options;
}

struct NamedOptions {
  std::string name;
  VocabLossOptions options;
};

inline std::vector<NamedOptions> every_kind() {
  using enum VocabLossKind;
  return {{"full", kFull},
          {"vocab_parallel", kVocabParallel},
          {"tiled", kTiled},
          {"tiled by 4", options_of(kTiled, 4)},
          {"tiled by 1", options_of(kTiled, 1)},
          {"ring of activations", options_of(kRing, 0, Circulate::kActivations)},
          {"ring of activations by 3", options_of(kRing, 3, Circulate::kActivations)},
          {"ring of weights", options_of(kRing, 0, Circulate::kWeights)},
          {"ring of weights by 3", options_of(kRing, 3, Circulate::kWeights)}};
}

}  // namespace steppe::ops::testing
