#include "cli/bench/optimizer_bench.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>

#include <algorithm>
#include <map>

#include "cli/bench/optimizer_bench_peers.h"
#include "cli/bench/optimizer_bench_problem.h"
#include "steppe/base/error.h"

namespace steppe::cli {
namespace {

using memory::Category, memory::Domain, optim::Placement;

constexpr int kCheckedSteps = 3;  // of every placement and peer, before any is timed

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

class OptimizerBench {
 public:
  explicit OptimizerBench(const OptimizerBenchOptions& options) : options_(options) {
    context_.device = at::globalContext().hasCUDA() ? at::Device(at::kCUDA, 0) : at::Device(at::kCPU);
    context_.dtype = options.dtype;
    auto random = at::make_generator<at::CPUGeneratorImpl>(uint64_t{11});
    master_ = at::randn({options.params}, random, at::TensorOptions().dtype(at::kFloat)).mul_(0.02);
    grad_ = at::randn({options.params}, random, at::TensorOptions().dtype(at::kFloat)).mul_(1e-3);
  }

  std::vector<OptimizerBenchRow> run() {
    for (const auto& [name, placement] : {std::pair{"resident", Placement::kResident},
                                          {"cpu", Placement::kCpu},
                                          {"stream", Placement::kStream}}) {
      add_placement(name, placement);
    }
    add_row({.name = "host_update"}, [this] { return cpu().host_update_seconds(); });
    add_row({.name = "link", .link_bytes = stream().link_bytes()},
            [this] { return stream().link_seconds(); });
    if (!options_.peers_python.empty()) add_peers();
    std::vector<std::vector<double>> seconds(rows_.size());
    for (int64_t sample = 0; sample < options_.samples; ++sample) {
      for (size_t i = 0; i < rows_.size(); ++i) seconds[i].push_back(samplers_[i]());
    }
    for (size_t i = 0; i < rows_.size(); ++i) rows_[i].time_s = median(seconds[i]);
    return rows_;
  }

 private:
  void add_row(OptimizerBenchRow row, std::function<double()> sampler) {
    rows_.push_back(std::move(row));
    samplers_.push_back(std::move(sampler));
  }
  OptimizerProblem& resident() { return *problems_[0]; }
  OptimizerProblem& cpu() { return *problems_[1]; }
  OptimizerProblem& stream() { return *problems_[2]; }

  // Makes the checked steps; the bytes are those of the last.
  void add_placement(const char* name, Placement placement) {
    const optim::StateOptions state{
        .placement = placement,
        .host_gradients = options_.host_gradients && placement != Placement::kResident,
        .moments_dtype = options_.moments};
    auto& problem = *problems_.emplace_back(std::make_unique<OptimizerProblem>(
        state, optim::BucketConfig{options_.bucket_params, options_.slots}, context_, master_, grad_));
    for (int i = 0; i < kCheckedSteps; ++i) problem.step();
    STEPPE_CHECK(problem.same_bits(resident()), "[bench optimizer] {} leaves other bits than resident", name);
    auto& ledger = problem.ledger();
    const auto of = [](const memory::BytesByCategory& bytes, Category category) {
      return bytes[static_cast<size_t>(category)];
    };
    add_row({.name = name,
             .device_bytes = of(ledger.live_by_category(), Category::kOptimizer),
             .host_bytes = ledger.live_bytes(Domain::kHost),
             .staging_bytes = of(ledger.peak_by_own_category(), Category::kStaging),
             .link_bytes = problem.link_bytes()},
            [&problem] { return problem.step_seconds(); });
  }

  void add_peers() {
    peers_.emplace(options_.peers_python, master_, grad_);
    const auto ours = resident().master();
    for (const auto& kind : peers_->kinds()) {
      const auto theirs = peers_->weights_after(kind, kCheckedSteps);
      // Steps of up to lr each; rounding of the weights themselves.
      const auto error = (ours - theirs).abs().max().item<double>();
      STEPPE_CHECK(options_.moments != at::kFloat || error <= 1e-6,
                   "[bench optimizer] the weights of {} differ from ours by {:.3g}", kind, error);
      add_row({.name = kind, .is_peer = true}, [this, kind] { return peers_->seconds(kind); });
    }
  }

  OptimizerBenchOptions options_;
  ops::OpContext context_;
  at::Tensor master_, grad_;
  std::vector<std::unique_ptr<OptimizerProblem>> problems_;
  std::optional<OptimizerPeers> peers_;
  std::vector<OptimizerBenchRow> rows_;
  std::vector<std::function<double()>> samplers_;
};

}  // namespace

std::vector<OptimizerBenchRow> bench_optimizer(const OptimizerBenchOptions& options) {
  return OptimizerBench(options).run();
}

}  // namespace steppe::cli
