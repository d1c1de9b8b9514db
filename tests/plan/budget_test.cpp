// The expected budget is never below the dry run, and at most a tenth above it; the guaranteed one is never
// below the dry run of any routing.
#include "steppe/plan/budget.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "steppe/base/bytes.h"
#include "tests/plan/planned_run.h"
#include "tests/plan/random_runs.h"

namespace steppe::testing {
namespace {

std::string describe(const plan::Budget& budget, const plan::DryRun& dry) {
  std::string text = fmt::format("expected {} ({}), dry run {} ({})\n", format_bytes(budget.expected()),
                                 budget.largest().name, format_bytes(dry.device.bytes), dry.device.mark);
  memory::BytesByCategory by_category{};
  for (const auto* phase : {&budget.persistent, &budget.largest()}) {
    for (const auto& term : phase->terms) by_category[static_cast<int>(term.category)] += term.expected;
  }
  for (int c = 0; c < memory::kNumCategories; ++c) {
    if (by_category[c] + dry.device.by_category[c] == 0) continue;
    text += fmt::format("  {:<10} {:>12} {:>12}\n", memory::category_name(static_cast<memory::Category>(c)),
                        by_category[c], dry.device.by_category[c]);
  }
  return text;
}

constexpr double kMost = 1.10;

void expect_close(const recipe::RunConfig& run, const plan::DryRunOptions& options) {
  const auto dry = plan::dry_run_heaviest(run, options);
  const auto budget = plan::make_budget(run, dry.rank, options);
  EXPECT_GE(budget.expected(), dry.device.bytes) << describe(budget, dry);
  EXPECT_LE(static_cast<double>(budget.expected()), kMost * static_cast<double>(dry.device.bytes))
      << describe(budget, dry);
  EXPECT_GE(budget.guaranteed(), budget.expected());
}

TEST(Budget, BoundsTheDryRunOfSmallRuns) {
  for (const auto& planned : planned_runs()) {
    SCOPED_TRACE(planned.name);
    expect_close(small_recipe(planned), planned.options());
  }
}

TEST(Budget, GuaranteesWhateverTheRouter) {
  for (const char* kind : {"ep", "llep", "pipelined_llep"}) {
    PlannedRun run{kind,
                   2,
                   {std::string("dispatch.kind=") + kind, "parallelism.expert_parallel_degree=2",
                    "dispatch.token_budget=16"}};
    const auto guaranteed = plan::make_budget(small_recipe(run), 0, {.world_size = 2}).guaranteed();
    run.overrides.push_back("");
    for (const char* profile : {"one", "random", "stride", "95/1", "50/8"}) {
      run.overrides.back() = std::string("plan.routing_profile=") + profile;
      const auto dry = plan::dry_run_heaviest(small_recipe(run), {.world_size = 2});
      EXPECT_LE(dry.device.bytes, guaranteed) << kind << " " << profile;
    }
  }
}

int64_t booked(const plan::Phase& phase, memory::Category category) {
  int64_t bytes = 0;
  for (const auto& term : phase.terms) bytes += term.category == category ? term.expected : 0;
  return bytes;
}

// Of experts that a rank helps with, weights are gathered and gradients are gradients: in fp32 as many bytes.
TEST(Budget, BooksForeignExpertsWhereTheyAre) {
  for (const auto& [mode, name] :
       {std::pair{"none", "backward of kept layer 2"}, {"full", "experts backward, MoE layer 2"}}) {
    SCOPED_TRACE(mode);
    const auto phase_of = [&, name = std::string(name)](const char* kind) {
      const auto run = small_recipe(
          {"",
           2,
           {std::string("dispatch.kind=") + kind, std::string("activation_checkpoint.mode=") + mode,
            "parallelism.expert_parallel_degree=2", "plan.routing_profile=80/4"}});
      const auto helper = plan::heaviest_candidates(run, 2).back();
      const auto budget = plan::make_budget(run, helper, {.world_size = 2});
      return *std::find_if(budget.phases.begin(), budget.phases.end(),
                           [&](const plan::Phase& phase) { return phase.name == name; });
    };
    const auto helping = phase_of("llep"), alone = phase_of("ep");
    const auto more = [&](memory::Category category) {
      return booked(helping, category) - booked(alone, category);
    };
    EXPECT_GT(more(memory::Category::kGathered), 0);
    EXPECT_EQ(more(memory::Category::kGathered), more(memory::Category::kGrads));
  }
}

TEST(Budget, BoundsTheDryRunOfTwoHundredLargeRuns) {
  RandomRuns runs(20240601);
  for (int i = 0; i < 200; ++i) {
    const auto run = runs.large();
    SCOPED_TRACE(fmt::format("run {}, {} ranks, {}", i, run.world_size, fmt::join(run.overrides, " ")));
    EXPECT_NO_THROW(expect_close(small_recipe(run), {.world_size = run.world_size, .as_cuda = i % 2 == 1}));
  }
}

}  // namespace
}  // namespace steppe::testing
