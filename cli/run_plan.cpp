#include "cli/run_plan.h"

#include <algorithm>
#include <sstream>
#include <string>

#include "cli/launch/exit_report.h"
#include "steppe/base/error.h"
#include "steppe/comm/store_gather.h"
#include "steppe/plan/advice.h"
#include "steppe/plan/limits.h"
#include "steppe/plan/plan.h"

namespace steppe::cli {
namespace {

// As long as ranks may take to meet: the plan of a long run takes a while.
std::chrono::milliseconds timeout_of(const recipe::RunConfig& run) {
  return std::chrono::milliseconds(static_cast<int64_t>(run.comm.init_timeout * 1000));
}

metrics::PlannedMemory planned_memory(const recipe::RunConfig& run, const plan::Plan& plan, int num_threads) {
  const auto& peak = plan.rank.device;
  metrics::PlannedMemory planned{.peak_bytes = peak.bytes,
                                 .expected_bytes = plan.budget.expected(),
                                 .guaranteed_bytes = plan.budget.guaranteed(),
                                 .peak_by_category = {},
                                 .routing_profile = run.plan.routing_profile,
                                 .unplanned_bytes = plan::unplanned_scratch(plan.hardware, run, num_threads)};
  for (int c = 0; c < memory::kNumCategories; ++c) {
    planned.peak_by_category[std::string(memory::category_name(static_cast<memory::Category>(c)))] =
        peak.by_category[c];
  }
  return planned;
}

plan::Plan checked_plan(const recipe::RunConfig& run, int world_size, int num_threads, const Log& log) {
  const plan::PlanOptions options{.world_size = world_size, .num_threads = num_threads};
  log.info("plans the run");
  auto plan = plan::make_plan(run, options);
  plan::Advice advice;
  const bool starts = plan.fits || run.plan.allow_unfit;
  if (!starts) advice = plan::advise(run, plan, options);
  // For `steppe report`, whatever becomes of the recipe.
  launch::write_atomically(run.run.folder + "/plan.json",
                           plan::plan_json(run, plan, advice.changes, advice.text) + '\n');
  STEPPE_CHECK_VALUE(starts,
                     "[plan] the run {}; {}. `steppe plan` shows every term; plan.allow_unfit = true starts "
                     "it anyway",
                     plan.verdict, advice.text);
  log.info("the plan {}", plan.verdict);
  for (const auto& remark : plan.remarks) log.info("the plan: {}", remark);
  return plan;
}

}  // namespace

RunPlan plan_run(const recipe::RunConfig& run, const launch::LaunchEnvironment& environment,
                 c10d::Store& store, int num_threads, const Log& log) {
  RunPlan made;
  if (environment.rank == 0) {
    const auto plan = checked_plan(run, environment.world_size, num_threads, log);
    made = {planned_memory(run, plan, num_threads), plan.attention_output_bytes};
  }
  if (run.activation_checkpoint.mode != "selective") return made;
  const auto own = made.attention_output_bytes.value_or(offload::OutputBudgets{});
  const auto all = comm::gather_through_store(
      store, "steppe/plan/attention_output_bytes", environment.rank, environment.world_size,
      fmt::format("{} {}", own.device_bytes, own.host_bytes), timeout_of(run));
  offload::OutputBudgets agreed;
  std::istringstream(all.front()) >> agreed.device_bytes >> agreed.host_bytes;
  made.attention_output_bytes = agreed;
  return made;
}

int64_t agree_on_ranks_per_node(const recipe::RunConfig& run, const launch::LaunchEnvironment& environment,
                                c10d::Store& store, const Log& log) {
  int64_t most = run.hardware.ranks_per_node.value_or(1);
  for (const auto& ranks : comm::gather_through_store(
           store, "steppe/plan/ranks_of_node", environment.rank, environment.world_size,
           std::to_string(environment.local_world_size), timeout_of(run))) {
    most = std::max<int64_t>(most, std::stoll(ranks));
  }
  if (environment.rank == 0 && most > run.hardware.ranks_per_node.value_or(most)) {
    log.warning("hardware.ranks_per_node = {}, but {} ranks are on a node: so many share its memory",
                *run.hardware.ranks_per_node, most);
  }
  return std::min<int64_t>(most, environment.world_size);
}

}  // namespace steppe::cli
