#include "steppe/plan/plan.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "steppe/base/bytes.h"
#include "steppe/base/error.h"
#include "steppe/plan/advice.h"
#include "steppe/plan/attention_room.h"
#include "steppe/plan/limits.h"
#include "steppe/plan/time_model.h"
#include "steppe/train/assembly.h"
#include "steppe/train/configure.h"

namespace steppe::plan {
namespace {

using memory::Category;

Category largest_category(const memory::BytesByCategory& bytes) {
  return static_cast<Category>(std::max_element(bytes.begin(), bytes.end()) - bytes.begin());
}

// The budget's largest term: of a category of the peak, or of host memory.
const Term* largest_term(const Plan& plan, std::optional<Category> category) {
  const Term* largest = nullptr;
  const auto look = [&](const std::vector<Term>& terms) {
    for (const auto& term : terms) {
      if (category && term.category != *category) continue;
      if (largest == nullptr || term.expected > largest->expected) largest = &term;
    }
  };
  if (!category) {
    look(plan.budget.host.terms);
    return largest;
  }
  look(plan.budget.persistent.terms), look(plan.budget.largest().terms);
  return largest;
}

std::string named(const Term* term) {
  return term == nullptr
             ? std::string()
             : fmt::format(" ({}: {} = {})", format_bytes(term->expected), term->name, term->formula);
}

// What breaks, and the first thing to change.
std::string why_not(const recipe::RunConfig& run, const Plan& plan, const Limits& limits,
                    const Needs& needs) {
  const auto changes = first_change(run, plan);
  const auto remedy = changes.empty() ? std::string(": more ranks, more memory or fewer tokens would help")
                                      : fmt::format(": try {}", fmt::join(changes, ", "));
  if (needs.device > limits.device_memory) {
    const auto top = largest_category(plan.rank.device.by_category);
    return fmt::format(
        "does not fit: {} on a device is {} more than the {} there are; most of the peak ({}) is {}, {}{}{}",
        format_bytes(needs.device), format_bytes(needs.device - limits.device_memory),
        format_bytes(limits.device_memory), plan.rank.device.mark, memory::category_name(top),
        format_bytes(plan.rank.device.by_category[static_cast<int>(top)]), named(largest_term(plan, top)),
        remedy);
  }
  const auto* term = largest_term(plan, std::nullopt);
  const auto most = term == nullptr ? std::string() : ", most of a rank's" + named(term);
  return fmt::format("does not fit: {} of host memory per node, {} more than there is{}{}",
                     format_bytes(needs.node), format_bytes(needs.node - limits.node_memory), most, remedy);
}

void judge(const recipe::RunConfig& run, Plan& plan) {
  const auto limits = limits_of(plan.hardware, run.hardware);
  const auto needs = needs_of(limits, plan.rank.device.bytes, plan.host_bytes_per_node);
  plan.fits = fits(limits, needs);
  plan.verdict = plan.fits ? fmt::format("fits: {} of {} on a device, {} to spare",
                                         format_bytes(needs.device), format_bytes(limits.device_memory),
                                         format_bytes(limits.device_memory - needs.device))
                           : why_not(run, plan, limits, needs);
  const int64_t guaranteed = plan.budget.guaranteed() + plan.reserved_bytes;
  if (plan.fits && guaranteed > limits.device_memory) {
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
  work.host_update_bytes =
      host_update_bytes(run.optimizer, refreshed, train::state_options(run).gradient_itemsize());
  return work;
}

}  // namespace

Plan make_plan(const recipe::RunConfig& given, const PlanOptions& options) {
  Plan plan;
  plan.hardware = hardware_of(given.hardware, options.world_size);
  auto run = given;
  run.hardware.ranks_per_node = plan.hardware.ranks_per_node;  // they share a node's offload.host_budget
  plan.layout = train::layout_config(run, options.world_size);
  const auto limits = limits_of(plan.hardware, run.hardware);
  plan.hardware.device_memory = limits.device_memory;
  DryRunOptions dry{.world_size = options.world_size,
                    .num_threads = options.num_threads,
                    .as_cuda = plan.hardware.is_accelerator,
                    .record_timeline = options.record_timeline};
  dry.attention_output_bytes = plan.attention_output_bytes = attention_output_room(run, dry, limits);
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
    STEPPE_CHECK_VALUE(options.rank < options.world_size, "[plan] rank must be in [0, W={}), got {}",
                       options.world_size, options.rank);
    plan.rank = dry_run(run, dry, options.rank);
  } else {
    plan.rank = dry_run_heaviest(run, dry);
  }
  host_of_ranks = std::max(host_of_ranks, plan.rank.host.bytes);
  plan.budget = make_budget(run, plan.rank.rank, dry);
  plan.reserved_bytes = limits.reserved_bytes;
  plan.device_bytes = plan.rank.device.bytes + plan.reserved_bytes;
  plan.host_bytes_per_node = plan.hardware.ranks_per_node * (host_of_ranks + plan.budget.checkpoint_snapshot);
  plan.step_seconds = step_time(work_of(run, plan.rank), plan.layout, plan.hardware).total();
  judge(run, plan);
  return plan;
}

}  // namespace steppe::plan
