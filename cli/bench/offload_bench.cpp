#include "cli/bench/offload_bench.h"

#include <ATen/Context.h>
#include <c10/core/CachingDeviceAllocator.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <numeric>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "steppe/base/error.h"
#include "steppe/comm/groups.h"
#include "steppe/memory/scope.h"
#include "steppe/model/weights.h"
#include "steppe/ops/router/router.h"
#include "steppe/train/step.h"

namespace steppe::cli {
namespace {

using Clock = std::chrono::steady_clock;
using memory::Category;
using offload::BoundaryPolicy;
using offload::OutputPlacement;

model::ModelConfig model_of(const OffloadBenchOptions& options) {
  model::ModelConfig c;
  c.num_hidden_layers = options.layers;
  c.hidden_size = options.hidden;
  c.num_attention_heads = options.heads;
  c.num_key_value_heads = options.kv_heads;
  c.head_dim = options.head_dim;
  c.vocab_size = options.vocab;
  c.max_position_embeddings = options.tokens;
  c.num_experts = options.experts;
  c.num_experts_per_tok = options.top_k;
  c.moe_intermediate_size = options.intermediate;
  model::validate(c, "bench offload");
  return c;
}

data::Microbatch tokens_of(const OffloadBenchOptions& options) {
  data::Sequence sequence;
  uint64_t state = 1;
  for (int64_t i = 0; i < options.tokens; ++i) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    sequence.tokens.push_back(static_cast<int32_t>((state >> 33) % static_cast<uint64_t>(options.vocab)));
    sequence.positions.push_back(static_cast<int32_t>(i));
  }
  sequence.targets.assign(sequence.tokens.begin() + 1, sequence.tokens.end());
  sequence.targets.push_back(data::kIgnoredTarget);
  sequence.document_starts = {0};
  data::Microbatch micro_batch;
  micro_batch.append(sequence, 0);
  return micro_batch;
}

struct Kept {
  const char* name;
  double boundary_share;  // of the layers, in host memory
  OutputPlacement outputs = OutputPlacement::kRecompute;
  bool everything = false;
};
constexpr Kept kKept[] = {
    {"device", 0},
    {"sco_quarter", 0.25},
    {"sco_half", 0.5},
    {"all", 1},
    {"outputs_on_device", 0, OutputPlacement::kDevice},
    {"outputs_on_host", 0, OutputPlacement::kHost},
    {"all_and_outputs_on_host", 1, OutputPlacement::kHost},
    {"everything_kept", 0, OutputPlacement::kRecompute, true},
};

train::StepConfig step_config_of(const Kept& kept, const OffloadBenchOptions& options) {
  train::StepConfig config;
  config.recompute = kept.everything ? train::Recompute::kNone : train::Recompute::kFull;
  const auto itemsize = static_cast<int64_t>(c10::elementSize(options.dtype));
  const auto on_host = static_cast<int64_t>(kept.boundary_share * static_cast<double>(options.layers));
  auto& offload = config.offload;
  offload.pin_memory = options.pin_memory;
  if (kept.boundary_share > 0) {
    offload.boundaries = kept.boundary_share < 1 ? BoundaryPolicy::kSco : BoundaryPolicy::kAll;
    offload.boundary_host_bytes =
        on_host * offload::BoundaryBytes{options.layers, options.tokens, options.hidden, itemsize}.of_one();
  }
  if (kept.outputs != OutputPlacement::kRecompute) {
    offload.attention_outputs.assign(options.layers, kept.outputs);
    const std::vector<offload::OutputCost> costs(
        options.layers,
        offload::attention_output_cost(options.tokens, options.heads, options.head_dim, itemsize));
    offload.output_host_bytes = offload::host_bytes_of(offload.attention_outputs, costs);
  }
  return config;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

// What all placements share.
struct Problem {
  explicit Problem(const OffloadBenchOptions& options)
      : model(model_of(options)),
        device(options.dry                     ? at::Device(at::kMeta)
               : at::globalContext().hasCUDA() ? at::Device(at::kCUDA, 0)
                                               : at::Device(at::kCPU)),
        context{device, options.dtype, &counters},
        groups(options.dry ? comm::make_shape_only_groups(layout)
                           : comm::make_groups(layout, c10::make_intrusive<c10d::HashStore>(),
                                               std::chrono::seconds(60), device.is_cuda())),
        weights(model, layout, groups, context),
        routing(ops::balanced_routing({model.num_experts, model.num_experts_per_tok, model.norm_topk_prob})),
        batch{tokens_of(options)} {
    weights.initialize(7);
  }

  model::ModelConfig model;
  layout::RankLayout layout{{}, 0};
  at::Device device;
  Counters counters;
  ops::OpContext context;
  comm::Groups groups;
  model::ModelWeights weights;
  ops::GivenRouting routing;
  std::vector<data::Microbatch> batch;
};

struct Contender {
  Contender(const Kept& given, Problem& problem, const OffloadBenchOptions& options)
      : kept(given),
        step(step_config_of(given, options), problem.model, problem.layout, problem.groups, problem.context,
             problem.weights, problem.routing) {}
  const Kept& kept;
  train::Step step;
  std::vector<double> times;
};

c10::CachingDeviceAllocator::DeviceStats allocator_stats(at::Device device) {
  return c10::getDeviceAllocator(device.type())->getDeviceStats(device.index());
}

// One step, which also warms up: its bytes and its results.
OffloadBenchRow first_step(Contender& contender, Problem& problem, const OffloadBenchOptions& options,
                           train::StepResult& result) {
  auto& ledger = memory::current_ledger();
  problem.counters.reset();
  ledger.reset_peak();
  const bool cuda = problem.device.is_cuda();
  if (cuda) c10::getDeviceAllocator(problem.device.type())->resetPeakStats(problem.device.index());
  result = contender.step.accumulate(problem.batch);
  const auto own = ledger.peak_by_own_category();
  const auto& offload = contender.step.offload().config();
  OffloadBenchRow row;
  row.placement = contender.kept.name;
  row.boundaries_on_host =
      static_cast<int64_t>(contender.kept.boundary_share * static_cast<double>(options.layers));
  const auto count = [&](OutputPlacement placement) {
    return std::count(offload.attention_outputs.begin(), offload.attention_outputs.end(), placement);
  };
  row.outputs_on_device = count(OutputPlacement::kDevice);
  row.outputs_on_host = count(OutputPlacement::kHost);
  row.peak_bytes = ledger.peak().bytes;
  row.boundary_bytes = own[static_cast<size_t>(Category::kBoundary)];
  row.saved_bytes = own[static_cast<size_t>(Category::kSaved)];
  row.host_bytes = offload.boundary_host_bytes + offload.output_host_bytes;
  row.attention_flops = problem.counters.flops[FlopKind::kAttention];
  if (cuda) row.allocator_peak_bytes = allocator_stats(problem.device).requested_bytes[0].peak;
  return row;
}

}  // namespace

const std::vector<std::string>& offload_bench_placements() {
  static const auto names = [] {
    std::vector<std::string> all;
    for (const auto& kept : kKept) all.emplace_back(kept.name);
    return all;
  }();
  return names;
}

std::vector<OffloadBenchRow> bench_offload(const OffloadBenchOptions& options) {
  Problem problem(options);
  std::vector<std::unique_ptr<Contender>> contenders;
  for (const auto& kept : kKept) {
    const auto& wanted = options.placements;
    const bool is_wanted =
        wanted.empty() || std::find(wanted.begin(), wanted.end(), kept.name) != wanted.end();
    // The first is what the others are compared to.
    if (is_wanted || contenders.empty()) {
      contenders.push_back(std::make_unique<Contender>(kept, problem, options));
    }
  }
  std::vector<OffloadBenchRow> rows;
  train::StepResult expected;
  for (auto& contender : contenders) {
    train::StepResult result;
    rows.push_back(first_step(*contender, problem, options, result));
    if (rows.size() == 1) expected = result;
    STEPPE_CHECK(result.loss == expected.loss && result.grad_norm == expected.grad_norm,
                 "[bench offload] {}: loss {} and gradient norm {} must be those of {}, {} and {}",
                 contender->kept.name, result.loss, result.grad_norm, rows.front().placement, expected.loss,
                 expected.grad_norm);
  }
  if (options.dry) return rows;
  for (int64_t sample = 0; sample < options.samples; ++sample) {
    for (auto& contender : contenders) {
      const auto start = Clock::now();
      contender->step.accumulate(problem.batch);
      contender->times.push_back(std::chrono::duration<double>(Clock::now() - start).count());
    }
  }
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto &times = contenders[i]->times, &base = contenders[0]->times;
    std::vector<double> ratios;
    for (size_t s = 0; s < times.size(); ++s) ratios.push_back(times[s] / base[s]);
    rows[i].time_s = median(times);
    rows[i].against_device = median(ratios);
  }
  return rows;
}

}  // namespace steppe::cli
