#include "cli/run_plan.h"

#include "steppe/base/error.h"
#include "steppe/plan/plan.h"

namespace steppe::cli {

int64_t planned_peak(const recipe::RunConfig& run, int world_size, int num_threads, const Log& log) {
  const auto plan = plan::make_plan(run, {.world_size = world_size, .num_threads = num_threads});
  STEPPE_CHECK_VALUE(
      plan.fits || run.plan.allow_unfit,
      "[plan] the run {}. `steppe plan` shows every term; plan.allow_unfit = true starts it anyway",
      plan.verdict);
  log.info("the plan {}", plan.verdict);
  for (const auto& remark : plan.remarks) log.info("the plan: {}", remark);
  return plan.rank.device.bytes;
}

}  // namespace steppe::cli
