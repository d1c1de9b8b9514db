#include "cli/bench/vocab_bench.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <numeric>

#include "cli/bench/vocab_bench_peers.h"
#include "steppe/base/error.h"
#include "steppe/comm/collectives.h"
#include "steppe/comm/gloo_communicator.h"
#include "steppe/comm/local_communicator.h"
#include "steppe/comm/rank_threads.h"
#include "steppe/comm/shape_only_communicator.h"
#include "steppe/kernels/pointwise.h"
#include "steppe/layout/layout.h"
#include "steppe/memory/scope.h"
#include "steppe/ops/vocab_loss/vocab_loss.h"

namespace steppe::cli {
namespace {

using Clock = std::chrono::steady_clock;

const std::map<std::string, ops::VocabLossOptions>& kinds() {
  using ops::Circulate, ops::VocabLossKind;
  static const auto ring = [](Circulate circulate) {
    ops::VocabLossOptions options(VocabLossKind::kRing);
    options.circulate = circulate;
    return options;
  };
  static const std::map<std::string, ops::VocabLossOptions> kinds{
      {"full", VocabLossKind::kFull},
      {"vocab_parallel", VocabLossKind::kVocabParallel},
      {"ring_activations", ring(Circulate::kActivations)},
      {"ring_weights", ring(Circulate::kWeights)},
      {"tiled", VocabLossKind::kTiled}};
  return kinds;
}

struct Problem {
  Problem(const VocabBenchOptions& options, int rank)
      : rows_of_rank(options.degree, options.tokens),
        columns(layout::even_part(options.vocab, options.degree, rank)) {
    const auto device = options.dry ? at::kMeta : at::kCPU;
    context = {device, options.dtype, &counters};
    const int64_t n = options.tokens, h = options.hidden;
    const auto fp32 = at::TensorOptions().dtype(at::kFloat);
    if (options.dry) {
      x = context.empty({n, h});
      weight = context.empty({columns.size(), h});
      targets = context.empty({n}, at::kInt);
      row_weight = context.empty({n}, at::kFloat);
    } else {
      auto random = at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(1 + rank));
      x = at::randn({n, h}, random, fp32).to(options.dtype);
      weight = at::randn({columns.size(), h}, random, fp32)
                   .mul_(1 / std::sqrt(static_cast<double>(h)))
                   .to(options.dtype);
      targets = at::randint(0, options.vocab, {n}, random, at::TensorOptions().dtype(at::kInt));
      row_weight = at::full({n}, 1.0 / static_cast<double>(n), fp32);  // the mean, as peers take it
    }
    loss = context.empty({1}, at::kDouble);
    dx = context.empty({n, h});
    grad = context.empty({columns.size(), h}, at::kFloat);
  }

  void run(const ops::VocabLossOptions& kind, comm::Communicator& group, const VocabBenchOptions& options) {
    kernels::fill_zero(loss);
    kernels::fill_zero(grad);
    ops::vocab_loss(kind, context, group,
                    {.x_NH = x,
                     .targets_N = targets,
                     .row_weight_N = row_weight,
                     .weight_vH = weight,
                     .vocab_size = options.vocab,
                     .first_column = columns.begin,
                     .rows_of_rank = rows_of_rank,
                     .host_targets = {},
                     .targets_of_rank = {}},
                    {loss, {}, dx, grad});
  }

  std::vector<int64_t> rows_of_rank;
  layout::Interval columns;
  Counters counters;
  ops::OpContext context;
  at::Tensor x, weight, targets, row_weight, loss, dx, grad;
};

double largest_over_ranks(comm::Communicator& group, double seconds) {
  return static_cast<double>(comm::all_reduce_max(group, static_cast<int64_t>(seconds * 1e9))) * 1e-9;
}

template <class Body>
double seconds_of(comm::Communicator& group, const Body& body) {
  group.barrier();
  const auto start = Clock::now();
  body();
  return largest_over_ranks(group, std::chrono::duration<double>(Clock::now() - start).count());
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

// The three products that no kind can do without, over all rows and this rank's columns, tile by tile.
class BareProducts {
 public:
  BareProducts(const Problem& problem, int64_t tile_rows)
      : problem_(problem),
        strip_(problem.context.empty({tile_rows, problem.weight.size(0)})),
        dx_(problem.context.empty({tile_rows, problem.weight.size(1)})),
        grad_(problem.context.empty(problem.weight.sizes())) {
    kernels::fill_zero(strip_);
    kernels::fill_zero(grad_);
  }

  void run(int64_t degree) {
    for (int64_t p = 0; p < degree; ++p) {
      for (int64_t begin = 0; begin < problem_.x.size(0); begin += strip_.size(0)) {
        const int64_t rows = std::min(strip_.size(0), problem_.x.size(0) - begin);
        auto strip = strip_.narrow(0, 0, rows), dx = dx_.narrow(0, 0, rows);
        const auto x = problem_.x.narrow(0, begin, rows);
        at::mm_out(strip, x, problem_.weight.t());
        at::addmm_out(grad_, grad_, strip.t(), x, 1, 1);
        at::mm_out(dx, strip, problem_.weight);
      }
    }
  }

 private:
  const Problem& problem_;
  at::Tensor strip_, dx_, grad_;
};

void check_same(const at::Tensor& got, const at::Tensor& want, double bound, const std::string& what) {
  const auto size = want.numel() == 0 ? 0.0 : want.abs().max().item<double>();
  const auto error =
      want.numel() == 0 ? 0.0 : (got.to(at::kDouble) - want.to(at::kDouble)).abs().max().item<double>();
  STEPPE_CHECK(error <= bound * size,
               "[bench vocab] {} differs from full by {:.3g} of its largest value {:.3g}", what, error, size);
}

// One rank's part; the figures are the same on all.
class RankBench {
 public:
  RankBench(const VocabBenchOptions& options, comm::Communicator& group)
      : options_(options), group_(group), problem_(options, group.rank()) {}

  std::vector<VocabBenchRow> run() {
    std::vector<VocabBenchRow> rows;
    for (const auto& name : options_.kinds) rows.push_back(measure_bytes(name));
    if (!options_.peers_python.empty()) start_peers(rows);
    if (!options_.dry) time(rows);
    return rows;
  }

 private:
  ops::VocabLossOptions kind(const std::string& name) const {
    auto kind = kinds().at(name);
    kind.tile_tokens = options_.tile_tokens;
    return kind;
  }

  // The first, untimed, run of a kind, and its check.
  VocabBenchRow measure_bytes(const std::string& name) {
    auto& ledger = memory::current_ledger();
    if (!options_.dry && !want_dx_.defined()) {
      problem_.run(kind("full"), group_, options_);
      want_loss_ = problem_.loss.clone();
      want_dx_ = problem_.dx.clone();
      want_grad_ = problem_.grad.clone();
    }
    const int64_t wire = group_.wire_bytes(), flops = problem_.counters.flops[FlopKind::kVocab];
    const int64_t kept =
        want_dx_.defined() ? static_cast<int64_t>(want_dx_.nbytes() + want_grad_.nbytes()) + 8 : 0;
    ledger.reset_peak();
    problem_.run(kind(name), group_, options_);
    VocabBenchRow row{.kind = name};
    row.vocab_bytes = ledger.peak_by_own_category()[static_cast<int>(memory::Category::kVocab)];
    row.peak_bytes = ledger.peak().bytes - kept;
    row.wire_bytes = group_.wire_bytes() - wire;
    const auto products = static_cast<double>(problem_.counters.flops[FlopKind::kVocab] - flops);
    for (auto* bytes : {&row.vocab_bytes, &row.peak_bytes, &row.wire_bytes})
      *bytes = comm::all_reduce_max(group_, *bytes);
    const auto all_rows = static_cast<double>(options_.tokens * options_.degree);
    row.products =
        products /
        (2 * all_rows * static_cast<double>(options_.hidden * std::max<int64_t>(1, problem_.columns.size())));
    if (!options_.dry) check(name, problem_.loss, problem_.dx, problem_.grad);
    return row;
  }

  void check(const std::string& name, const at::Tensor& loss, const at::Tensor& dx,
             const at::Tensor& grad) const {
    const double bound = options_.dtype == at::kFloat ? 1e-4 : 5e-2;
    check_same(loss, want_loss_, bound, name + "'s loss");
    check_same(dx, want_dx_, bound, name + "'s dx");
    check_same(grad, want_grad_, bound, name + "'s dW");
  }

  void start_peers(std::vector<VocabBenchRow>& rows) {
    const auto& p = problem_;
    peers_.emplace(options_.peers_python,
                   VocabPeerInput{p.x, p.targets, p.weight, std::min(tile_rows(), options_.tokens)});
    for (const auto& peer : peers_->kinds()) {
      const auto run = peers_->measure(peer);
      check(peer, at::full({1}, run.loss * static_cast<double>(options_.tokens), at::kDouble), run.dx_NH,
            run.grad_weight_VH);
      const auto held = p.x.nbytes() + p.targets.nbytes() + 2 * p.weight.nbytes() + p.dx.nbytes();
      rows.push_back({.kind = peer,
                      .vocab_bytes = run.gained_bytes,
                      .peak_bytes = run.gained_bytes + static_cast<int64_t>(held)});
    }
  }

  // Of all ranks, in a tile of `tiled`.
  int64_t tile_rows() const {
    const ops::VocabLossShape shape{options_.hidden, options_.vocab, options_.degree, options_.tokens,
                                    problem_.context.itemsize()};
    return ops::resolve_tile_tokens(kind("tiled"), shape) * options_.degree;
  }

  // Samples of all kinds take turns.
  void time(std::vector<VocabBenchRow>& rows) {
    std::vector<std::vector<double>> times(rows.size());
    std::vector<double> products;
    for (int64_t sample = 0; sample < options_.samples; ++sample) {
      {
        BareProducts bare(problem_, std::min(tile_rows(), options_.tokens));
        products.push_back(seconds_of(group_, [&] { bare.run(options_.degree); }));
      }
      for (size_t i = 0; i < rows.size(); ++i) {
        if (!kinds().contains(rows[i].kind)) {
          times[i].push_back(peers_->seconds(rows[i].kind));
          continue;
        }
        const auto options = kind(rows[i].kind);
        times[i].push_back(seconds_of(group_, [&] { problem_.run(options, group_, options_); }));
      }
    }
    for (size_t i = 0; i < rows.size(); ++i) {
      rows[i].products_time_s = median(products);
      rows[i].time_s = median(times[i]);
    }
  }

  const VocabBenchOptions& options_;
  comm::Communicator& group_;
  Problem problem_;
  at::Tensor want_loss_, want_dx_, want_grad_;
  std::optional<VocabPeers> peers_;
};

}  // namespace

const std::vector<std::string>& vocab_bench_kinds() {
  static const std::vector<std::string> names{"full", "vocab_parallel", "ring_activations", "ring_weights",
                                              "tiled"};
  return names;
}

std::vector<VocabBenchRow> bench_vocab(const VocabBenchOptions& given) {
  auto options = given;
  if (options.kinds.empty()) options.kinds = vocab_bench_kinds();
  STEPPE_CHECK_VALUE(options.peers_python.empty() || (options.degree == 1 && !options.dry),
                     "[bench vocab] peers have one rank and need a real run, got degree {}{}", options.degree,
                     options.dry ? ", dry" : "");
  if (options.dry) {
    comm::ShapeOnlyCommunicator group("vocab", 0, options.degree);
    return RankBench(options, group).run();
  }
  if (options.degree == 1) {
    comm::LocalCommunicator group("vocab", at::kCPU);
    return RankBench(options, group).run();
  }
  std::vector<VocabBenchRow> rows;
  std::vector<int> ranks(options.degree);
  std::iota(ranks.begin(), ranks.end(), 0);
  comm::run_ranks(
      options.degree,
      [&](int rank, const auto& store) {
        comm::GlooCommunicator group("vocab", rank, ranks, store, {.loopback = true});
        auto of_rank = RankBench(options, group).run();
        if (rank == 0) rows = std::move(of_rank);
      },
      std::chrono::hours(2));
  return rows;
}

}  // namespace steppe::cli
