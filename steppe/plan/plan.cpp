#include "steppe/plan/plan.h"

#include <algorithm>

#include "steppe/base/bytes.h"
#include "steppe/base/error.h"
#include "steppe/plan/attention_room.h"
#include "steppe/plan/time_model.h"
#include "steppe/train/assembly.h"
#include "steppe/train/configure.h"

namespace steppe::plan {
namespace {

using memory::Category;

// What to change where a category makes the peak; nothing where only fewer tokens or more ranks help.
std::string advice(Category category, const recipe::RunConfig& run) {
  switch (category) {
    case Category::kBoundary:
      return "a higher parallelism.ulysses_degree, or offload.activations = \"sco\" with an "
             "offload.host_budget";
    case Category::kSaved:
      return "activation_checkpoint.mode = \"full\"";
    case Category::kDispatch:
    case Category::kExpert:
      return run.dispatch.kind == "pipelined_llep"
                 ? "a lower dispatch.token_budget, or more dispatch.max_chunks"
                 : "dispatch.kind = \"pipelined_llep\"";
    case Category::kVocab:
      return run.loss.kind == "tiled" || run.loss.kind == "auto" ? "fewer loss.tile_tokens"
                                                                 : "loss.kind = \"tiled\"";
    case Category::kOptimizer:
      return "optimizer.placement = \"stream\"";
    case Category::kWeights:
    case Category::kGrads:
      return "a higher parallelism.expert_parallel_degree or vocab_parallel_degree, or more ranks";
    case Category::kFfn:
      return "fewer activation_checkpoint.mlp_tile_tokens";
    default:
      return "a higher parallelism.ulysses_degree, or a shorter training.seq_length";
  }
}

Category largest_category(const memory::BytesByCategory& bytes) {
  return static_cast<Category>(std::max_element(bytes.begin(), bytes.end()) - bytes.begin());
}

int64_t memory_of_ranks(const Plan& plan) {
  // On a CPU a rank's device memory is its share of the node's.
  return plan.hardware.is_accelerator ? plan.hardware.device_memory
                                      : plan.hardware.host_memory / plan.hardware.ranks_per_node;
}

void judge(const recipe::RunConfig& run, Plan& plan) {
  const int64_t memory = memory_of_ranks(plan);
  const int64_t on_device =
      plan.device_bytes +
      (plan.hardware.is_accelerator ? 0 : plan.host_bytes_per_node / plan.hardware.ranks_per_node);
  const bool host_fits = plan.host_bytes_per_node <= plan.hardware.host_memory;
  plan.fits = on_device <= memory && host_fits;
  if (plan.fits) {
    plan.verdict = fmt::format("fits: {} of {} on a device, {} to spare", format_bytes(on_device),
                               format_bytes(memory), format_bytes(memory - on_device));
  } else if (!host_fits) {
    plan.verdict = fmt::format("does not fit: {} of host memory per node, {} more than there is",
                               format_bytes(plan.host_bytes_per_node),
                               format_bytes(plan.host_bytes_per_node - plan.hardware.host_memory));
  } else {
    const auto top = largest_category(plan.rank.device.by_category);
    plan.verdict = fmt::format(
        "does not fit: {} on a device is {} more than the {} there are; most of the peak ({}) is {}, {}: try "
        "{}",
        format_bytes(on_device), format_bytes(on_device - memory), format_bytes(memory),
        plan.rank.device.mark, memory::category_name(top),
        format_bytes(plan.rank.device.by_category[static_cast<int>(top)]), advice(top, run));
  }
  const int64_t guaranteed = plan.budget.guaranteed() + plan.reserved_bytes;
  if (plan.fits && guaranteed > memory) {
    plan.remarks.push_back(
        fmt::format("a router that sends everything to one rank could need {}: more than there is",
                    format_bytes(guaranteed)));
  }
  const auto& dispatch = run.dispatch;
  const int64_t in_a_chunk = (plan.rank.num_tokens + dispatch.max_chunks - 1) / dispatch.max_chunks;
  if (dispatch.kind == "pipelined_llep" && in_a_chunk > dispatch.token_budget) {
    plan.remarks.push_back(fmt::format(
        "dispatch.max_chunks = {} wins over dispatch.token_budget = {}: a chunk has {} tokens of a rank",
        dispatch.max_chunks, dispatch.token_budget, in_a_chunk));
  }
}

StepWork work_of(const recipe::RunConfig& run, const DryRun& rank) {
  StepWork work{rank.counters, rank.update};
  work.passes -= rank.update;
  // Whatever the host updates goes up as working weights.
  const auto itemsize = static_cast<int64_t>(c10::elementSize(train::compute_dtype(run)));
  const int64_t refreshed =
      rank.update.link_bytes[LinkDirection::kHostToDevice][LinkPurpose::kWeights] / itemsize;
  work.host_update_bytes = host_update_bytes(run.optimizer, refreshed);
  return work;
}

}  // namespace

Plan make_plan(const recipe::RunConfig& given, const PlanOptions& options) {
  Plan plan;
  plan.hardware = hardware_of(given.hardware, options.world_size);
  auto run = given;
  run.hardware.ranks_per_node = plan.hardware.ranks_per_node;  // they share a node's offload.host_budget
  plan.layout = train::layout_config(run, options.world_size);
  DryRunOptions dry{.world_size = options.world_size,
                    .num_threads = options.num_threads,
                    .as_cuda = plan.hardware.is_accelerator,
                    .record_timeline = options.record_timeline};
  dry.attention_output_bytes = plan.attention_output_bytes =
      attention_output_room(run, dry, plan.hardware, memory_of_ranks(plan));
  const train::RankShape shape(run, 0, options.world_size);
  plan.kept =
      train::offload_config(run, shape.model, shape.layout_config, plan.attention_output_bytes).description;
  int64_t host_of_ranks = 0;
  if (options.all_ranks) {
    for (auto& rank : dry_run_all(run, dry)) {
      host_of_ranks = std::max(host_of_ranks, rank.host.bytes);
      if (rank.device.bytes > plan.rank.device.bytes) plan.rank = std::move(rank);
    }
  } else if (options.rank >= 0) {
    STEPPE_CHECK_VALUE(options.rank < options.world_size, "[plan] rank {} of {} ranks", options.rank,
                       options.world_size);
    plan.rank = dry_run(run, dry, options.rank);
  } else {
    plan.rank = dry_run_heaviest(run, dry);
  }
  host_of_ranks = std::max(host_of_ranks, plan.rank.host.bytes);
  plan.budget = make_budget(run, plan.rank.rank, dry);
  plan.reserved_bytes = reserved_bytes(plan.hardware);
  plan.device_bytes = plan.rank.device.bytes + plan.reserved_bytes;
  plan.host_bytes_per_node = plan.hardware.ranks_per_node * (host_of_ranks + plan.budget.checkpoint_snapshot);
  plan.step_seconds = step_time(work_of(run, plan.rank), plan.layout, plan.hardware).total();
  judge(run, plan);
  return plan;
}

}  // namespace steppe::plan
