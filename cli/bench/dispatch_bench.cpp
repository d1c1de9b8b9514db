#include "cli/bench/dispatch_bench.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <numeric>

#include "cli/bench/dispatch_bench_layer.h"
#include "cli/bench/dispatch_timeline.h"
#include "steppe/base/error.h"
#include "steppe/comm/collectives.h"
#include "steppe/comm/gloo_communicator.h"
#include "steppe/comm/local_communicator.h"
#include "steppe/comm/rank_threads.h"
#include "steppe/comm/shape_only_communicator.h"
#include "steppe/kernels/pointwise.h"
#include "steppe/memory/scope.h"
#include "steppe/ops/moe_dispatch/chunk_sizes.h"
#include "steppe/ops/moe_dispatch/packed_rows.h"

namespace steppe::cli {
namespace {

using Clock = std::chrono::steady_clock;
using ops::DispatchKind;

ops::DispatchOptions options_of(const std::string& kind, const DispatchBenchOptions& o) {
  auto options = o.dispatch;
  options.kind = kind == "ep"               ? DispatchKind::kEp
                 : kind == "pipelined_llep" ? DispatchKind::kPipelinedLlep
                                            : DispatchKind::kLlep;
  if (kind == "ep" || kind == "llep") options.tile_rows = 0;
  if (kind == "llep_tiled" && options.tile_rows == 0) {
    const auto split = ops::split_tokens({.kind = DispatchKind::kPipelinedLlep,
                                          .token_budget = o.dispatch.token_budget,
                                          .max_chunks = o.dispatch.max_chunks},
                                         o.tokens);
    options.tile_rows = ops::default_tile_rows(o.top_k * split.tokens(0, o.tokens));
  }
  return options;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

// What the plan says, the same on every rank.
struct Planned {
  int64_t chunk_rows = 0, rows_max = 0, helpers_max = 0;
  double share_max = 0;
  double seconds = 0;
};

Planned planned(const ops::RouteCounts& counts, const DispatchBenchOptions& o,
                const ops::DispatchOptions& kind) {
  const auto options = ops::plan_options(kind);
  const auto plan = ops::plan_dispatch(counts, o.expert_degree, o.top_k, options);
  const auto plan_again = [&] {
    const auto start = Clock::now();
    ops::plan_dispatch(counts, o.expert_degree, o.top_k, options);
    return std::chrono::duration<double>(Clock::now() - start).count();
  };
  Planned result{plan.chunk_rows(), 0, plan.helpers.most(), 0};
  result.seconds = plan_again();
  for (int i = 0; i < 20; ++i) result.seconds = std::min(result.seconds, plan_again());
  for (const auto& chunk : plan.chunks) {
    const auto total = std::accumulate(chunk.rows_of_rank.begin(), chunk.rows_of_rank.end(), int64_t{0});
    const auto most = *std::max_element(chunk.rows_of_rank.begin(), chunk.rows_of_rank.end());
    result.rows_max = std::max(result.rows_max, most);
    if (total > 0)
      result.share_max = std::max(result.share_max, static_cast<double>(most) / static_cast<double>(total));
  }
  return result;
}

void check_same(const at::Tensor& got, const at::Tensor& want, double bound, const std::string& what) {
  if (want.numel() == 0) return;
  const double size = want.abs().max().item<double>();
  const double error = (got.to(at::kDouble) - want.to(at::kDouble)).abs().max().item<double>();
  STEPPE_CHECK(error <= bound * size,
               "[bench dispatch] {} differs from ep's by {:.3g} of its largest value {:.3g}", what, error,
               size);
}

class RankBench {
 public:
  RankBench(const DispatchBenchOptions& options, const ProfileCounts& counts, comm::Communicator& group,
            Clock::time_point start = {})
      : options_(options), counts_(counts), group_(group), start_(start), layer_(options, group.rank()) {}

  std::vector<DispatchBenchRow> run() {
    if (!options_.dry) keep_reference();
    for (const auto& kind : options_.kinds) measure(kind);
    if (!options_.dry) time();
    if (!options_.timeline.empty()) trace();
    return rows_;
  }
  const std::vector<PassTimeline>& timelines() const { return timelines_; }

 private:
  std::vector<at::Tensor> results() const {
    return {layer_.y, layer_.x, layer_.dweights, layer_.grads.gate_up_E2IH, layer_.grads.down_EHI};
  }

  ops::DispatchOptions use(const std::string& kind) {
    const auto options = options_of(kind, options_);
    layer_.restore_x();
    layer_.routing.counts = counts_.of(ops::split_tokens(options, options_.tokens));
    return options;
  }

  void zero_gradients() {
    kernels::fill_zero(layer_.grads.gate_up_E2IH);
    kernels::fill_zero(layer_.grads.down_EHI);
  }

  double bound() const { return options_.dtype == at::kFloat ? 1e-4 : 5e-2; }

  void keep_reference() {
    const auto ep = use("ep");
    zero_gradients();
    layer_.forward(group_, ep);
    layer_.backward(group_, ep);
    const double error = layer_.error_of_some_tokens();
    STEPPE_CHECK(error <= bound(),
                 "[bench dispatch] ep differs from fp64 loops by {:.3g} of the largest value", error);
    for (const auto& result : results()) want_.push_back(result.clone());
  }

  template <class Run>
  void measure_pass(const std::string& kind, const char* pass, int slots, const Planned& plan, int64_t chunks,
                    Run run) {
    auto& ledger = memory::current_ledger();
    int64_t kept = 0;
    for (const auto& want : want_) kept += static_cast<int64_t>(want.nbytes());
    // What is no operand of the pass.
    kept += static_cast<int64_t>(slots == 4 ? layer_.y.nbytes() : layer_.dy.nbytes());
    if (layer_.x_before.defined()) kept += static_cast<int64_t>(layer_.x_before.nbytes());
    const int64_t flops = layer_.counters.flops[FlopKind::kExpert];
    CountingCommunicator counting(group_);
    ledger.reset_peak();
    run(counting);
    const auto own = ledger.peak_by_own_category();
    const int64_t row = options_.hidden * static_cast<int64_t>(c10::elementSize(options_.dtype));
    DispatchBenchRow result;
    result.kind = kind, result.pass = pass;
    result.peak_bytes = ledger.peak().bytes - kept;
    result.dispatch_bytes = own[static_cast<size_t>(memory::Category::kDispatch)];
    result.expert_bytes = own[static_cast<size_t>(memory::Category::kExpert)];
    result.receive_bytes_max = plan.rows_max * row;
    // Slots of x carry the routing weights.
    const ops::PackedRow packed_row(options_.hidden, options_.dtype);
    const int64_t packed = packed_row.width() * packed_row.itemsize;
    result.bound_bytes = options_.expert_degree * plan.chunk_rows * (2 * packed + (slots - 2) * row);
    result.helpers_max = plan.helpers_max;
    result.send_share = plan.share_max;
    result.plan_time_s = plan.seconds;
    result.all_to_alls = counting.activations / chunks;
    const double unit = 2.0 * static_cast<double>(options_.hidden * options_.intermediate) *
                        static_cast<double>(options_.tokens * options_.top_k);
    result.units = static_cast<double>(layer_.counters.flops[FlopKind::kExpert] - flops) / unit;
    rows_.push_back(result);
  }

  void measure(const std::string& kind) {
    const auto options = use(kind);
    const int64_t chunks = layer_.routing.counts.split.num_chunks;
    const auto plan = planned(layer_.routing.counts, options_, options);
    zero_gradients();
    measure_pass(kind, "forward", 2, plan, chunks,
                 [&](comm::Communicator& group) { layer_.forward(group, options); });
    measure_pass(kind, "backward", 4, plan, chunks,
                 [&](comm::Communicator& group) { layer_.backward(group, options); });
    if (options_.dry) return;
    const char* names[] = {"y", "dx", "dweights", "gate and up gradient", "down gradient"};
    const auto got = results();
    for (size_t i = 0; i < got.size(); ++i)
      check_same(got[i], want_[i], bound(), fmt::format("{}'s {}", kind, names[i]));
  }

  // Samples of all kinds alternate, so that whatever else the machine does hits them alike.
  void time() {
    std::vector<std::vector<double>> seconds(rows_.size());
    const auto timed = [&](auto run) {
      group_.barrier();
      const auto start = Clock::now();
      run();
      group_.barrier();
      return std::chrono::duration<double>(Clock::now() - start).count();
    };
    for (int64_t sample = 0; sample < options_.samples; ++sample)
      for (size_t k = 0; k < options_.kinds.size(); ++k) {
        const auto options = use(options_.kinds[k]);
        seconds[2 * k].push_back(timed([&] { layer_.forward(group_, options); }));
        seconds[2 * k + 1].push_back(timed([&] { layer_.backward(group_, options); }));
      }
    for (size_t i = 0; i < rows_.size(); ++i) rows_[i].time_s = median(seconds[i]);
  }

  void trace() {
    const auto seconds = [this] { return std::chrono::duration<double>(Clock::now() - start_).count(); };
    for (size_t i = 0; i < rows_.size(); ++i) {
      const auto options = use(rows_[i].kind);
      auto& pass = timelines_.emplace_back(
          PassTimeline{.kind = rows_[i].kind, .pass = rows_[i].pass, .rank = group_.rank()});
      group_.barrier();
      pass.whole.begin = seconds();
      {
        RecordingCommunicator recording(group_, start_, pass.exchanges);
        const ProductRecorder recorder(start_, pass.products);
        if (rows_[i].pass == "forward")
          layer_.forward(recording, options);
        else
          layer_.backward(recording, options);
      }
      pass.whole.end = seconds();
      rows_[i].travelling_s = pass.travelling(), rows_[i].hidden_s = pass.hidden();
    }
  }

  const DispatchBenchOptions& options_;
  const ProfileCounts& counts_;
  comm::Communicator& group_;
  Clock::time_point start_;
  BenchLayer layer_;
  std::vector<at::Tensor> want_;
  std::vector<DispatchBenchRow> rows_;
  std::vector<PassTimeline> timelines_;
};

// The largest over ranks; of units and of what a trace shows the mean.
std::vector<DispatchBenchRow> merged(const std::vector<std::vector<DispatchBenchRow>>& of_ranks) {
  auto rows = of_ranks[0];
  for (size_t i = 0; i < rows.size(); ++i) {
    double units = 0, travelling = 0, hidden = 0;
    for (const auto& rank : of_ranks) {
      units += rank[i].units;
      travelling += rank[i].travelling_s.value_or(0), hidden += rank[i].hidden_s.value_or(0);
      rows[i].peak_bytes = std::max(rows[i].peak_bytes, rank[i].peak_bytes);
      rows[i].dispatch_bytes = std::max(rows[i].dispatch_bytes, rank[i].dispatch_bytes);
      rows[i].expert_bytes = std::max(rows[i].expert_bytes, rank[i].expert_bytes);
      if (rank[i].time_s) rows[i].time_s = std::max(*rows[i].time_s, *rank[i].time_s);
    }
    const auto ranks = static_cast<double>(of_ranks.size());
    rows[i].units = units / ranks;
    if (rows[i].travelling_s) rows[i].travelling_s = travelling / ranks, rows[i].hidden_s = hidden / ranks;
  }
  return rows;
}

}  // namespace

const std::vector<std::string>& dispatch_bench_kinds() {
  static const std::vector<std::string> kinds{"ep", "llep", "llep_tiled", "pipelined_llep"};
  return kinds;
}

std::vector<DispatchBenchRow> bench_dispatch(const DispatchBenchOptions& given) {
  auto options = given;
  if (options.kinds.empty()) options.kinds = dispatch_bench_kinds();
  options.dispatch.kind = DispatchKind::kPipelinedLlep;  // whose chunks the stride profile follows
  STEPPE_CHECK_VALUE(options.num_experts % options.expert_degree == 0,
                     "[bench dispatch] --expert-degree must divide the {} experts, got {}",
                     options.num_experts, options.expert_degree);
  STEPPE_CHECK_VALUE(!options.dry || options.timeline.empty(),
                     "[bench dispatch] --timeline needs a real run, got --dry");
  const ProfileCounts counts(options);
  std::vector<std::vector<DispatchBenchRow>> of_ranks(options.expert_degree);
  std::vector<std::vector<PassTimeline>> timelines(options.expert_degree);
  const auto start = Clock::now();
  if (options.dry) {
    const auto plan_all = [&](int, const auto&) {
      for (int rank = 0; rank < options.expert_degree; ++rank) {
        comm::ShapeOnlyCommunicator group("expert", rank, options.expert_degree);
        of_ranks[rank] = RankBench(options, counts, group).run();
      }
    };
    comm::run_ranks(1, plan_all, std::chrono::hours(1));
    return merged(of_ranks);
  }
  comm::run_ranks(
      options.expert_degree,
      [&](int rank, const auto& store) {
        std::vector<int> ranks(options.expert_degree);
        std::iota(ranks.begin(), ranks.end(), 0);
        const auto timeout = std::chrono::minutes(10);
        std::unique_ptr<comm::Communicator> group;
        if (options.expert_degree == 1)
          group = std::make_unique<comm::LocalCommunicator>("expert", at::kCPU);
        else
          group = std::make_unique<comm::GlooCommunicator>(
              "expert", rank, ranks, store, comm::GlooOptions{.timeout = timeout, .loopback = true});
        RankBench bench(options, counts, *group, start);
        of_ranks[rank] = bench.run();
        timelines[rank] = bench.timelines();
      },
      std::chrono::hours(1));
  if (!options.timeline.empty()) write_timeline(options.timeline, timelines);
  return merged(of_ranks);
}

}  // namespace steppe::cli
