// The dry run against the real run on the CPU: the same peak, by category, to the byte; the same counters.
#include "steppe/plan/dry_run.h"

#include <ATen/Context.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "steppe/base/error.h"
#include "steppe/base/temporary_folder.h"
#include "steppe/model/hugging_face_config.h"
#include "tests/plan/planned_run.h"
#include "tests/plan/random_runs.h"

namespace steppe::testing {
namespace {

// oneDNN's bf16 products, where the CPU has them, take scratch of their own while they run.
class WithoutOneDnn : public ::testing::TestWithParam<PlannedRun> {
 protected:
  void SetUp() override { at::globalContext().setUserEnabledMkldnn(false); }
};
using DryRunTest = WithoutOneDnn;
class DryRunOfRandomRuns : public ::testing::Test {
 protected:
  void SetUp() override { at::globalContext().setUserEnabledMkldnn(false); }
};

void expect_same(const plan::DryRun& real, const plan::DryRun& dry) {
  EXPECT_EQ(real.persistent, dry.persistent);
  EXPECT_EQ(real.persistent_host, dry.persistent_host);
  EXPECT_EQ(real.device.bytes, dry.device.bytes);
  EXPECT_EQ(real.device.by_category, dry.device.by_category);
  EXPECT_EQ(real.device.mark, dry.device.mark);
  EXPECT_EQ(real.host.bytes, dry.host.bytes);
  EXPECT_EQ(real.own_peak, dry.own_peak);
  EXPECT_EQ(real.counters.flops, dry.counters.flops);
  EXPECT_EQ(real.counters.wire_bytes, dry.counters.wire_bytes);
  EXPECT_EQ(real.counters.link_bytes, dry.counters.link_bytes);
}

TEST_P(DryRunTest, IsTheRun) {
  const auto& planned = GetParam();
  const auto run = small_recipe(planned);
  const auto real = real_run(run, planned);
  const auto dry = plan::dry_run_all(run, planned.options());
  for (int rank = 0; rank < planned.world_size; ++rank) {
    SCOPED_TRACE(::testing::Message() << planned.name << ", rank " << rank);
    EXPECT_GT(real[rank].device.bytes, 100'000);
    expect_same(real[rank], dry[rank]);
  }
}

// Options together that nobody thought of.
TEST_F(DryRunOfRandomRuns, IsTheRun) {
  RandomRuns runs(20261130);
  for (int i = 0; i < 25; ++i) {
    const auto planned = runs.small();
    SCOPED_TRACE(
        fmt::format("run {}, {} ranks, {}", i, planned.world_size, fmt::join(planned.overrides, " ")));
    EXPECT_NO_THROW({
      const auto run = small_recipe(planned);
      const auto real = real_run(run, planned);
      const auto dry = plan::dry_run_all(run, planned.options());
      for (int rank = 0; rank < planned.world_size; ++rank) expect_same(real[rank], dry[rank]);
    });
  }
}

// A rank by itself supposes peers like it: never less than the fullest one's truth.
TEST_P(DryRunTest, AloneIsNoLessThanTheFullest) {
  const auto& planned = GetParam();
  const auto run = small_recipe(planned);
  const auto options = planned.options();
  int64_t fullest = 0;
  for (const auto& rank : plan::dry_run_all(run, options)) fullest = std::max(fullest, rank.device.bytes);
  const auto alone = plan::dry_run_heaviest(run, options);
  if (run.plan.routing_profile == "random") {  // every rank has a routing of its own
    EXPECT_GE(alone.device.bytes, fullest * 9 / 10);
  } else {
    EXPECT_GE(alone.device.bytes, fullest) << planned.name;
  }
}

INSTANTIATE_TEST_SUITE_P(Runs, DryRunTest, ::testing::ValuesIn(planned_runs()));

TEST(DryRun, CountsAllMicroBatchesOfAStep) {
  const PlannedRun two{"", 2, {"training.global_batch_size=4"}},
      six{"", 2, {"training.global_batch_size=12"}};
  const auto some = plan::dry_run(small_recipe(two), {.world_size = 2}, 0);
  const auto many = plan::dry_run(small_recipe(six), {.world_size = 2}, 0);
  EXPECT_EQ(some.num_micro_batches, 2);
  EXPECT_EQ(many.num_micro_batches, 6);
  EXPECT_EQ(some.device.bytes, many.device.bytes);
  const auto kind = FlopKind::kExpert;
  EXPECT_EQ(3 * some.counters.flops[kind], many.counters.flops[kind]);
  const auto real = real_run(small_recipe(six), six);
  EXPECT_EQ(real[0].counters.flops, many.counters.flops);
  EXPECT_EQ(real[0].counters.wire_bytes, many.counters.wire_bytes);
  EXPECT_EQ(real[0].counters.link_bytes, many.counters.link_bytes);
}

// Training's TFLOP/s are what a model needs. Where nothing is recomputed that is what is counted, but for
// attention's kernel, which forms its scores again (14 parts in place of 12), and the update.
// Gradients come back from the host for a second micro-batch, which the first group does not have.
TEST(DryRun, OfUnevenGroupsTheHeaviestHasMoreMicroBatches) {
  const PlannedRun planned{"",
                           3,
                           {"training.global_batch_size=4", "optimizer.placement=stream",
                            "optimizer.gradients=host", "optimizer.bucket_params=5000"}};
  const auto run = small_recipe(planned);
  const plan::DryRunOptions options{.world_size = 3};
  int64_t fullest = 0;
  for (const auto& rank : plan::dry_run_all(run, options)) fullest = std::max(fullest, rank.device.bytes);
  EXPECT_EQ(plan::dry_run_heaviest(run, options).device.bytes, fullest);
}

TEST(DryRun, CountsWhatTrainingsFlopsSay) {
  const PlannedRun planned{"", 1, {"activation_checkpoint.mode=none", "training.global_batch_size=1"}};
  const auto run = small_recipe(planned);
  auto flops = plan::dry_run(run, {}, 0).counters.flops;
  flops[FlopKind::kOptimizer] = 0;
  flops[FlopKind::kAttention] = flops[FlopKind::kAttention] / 14 * 12;
  const double needed = 100 * model::model_config(run.model).flops_per_token(100);
  EXPECT_LE(static_cast<double>(flops.sum()), needed);
  EXPECT_GE(static_cast<double>(flops.sum()), 0.99 * needed);  // one token has no target
}

TEST(DryRun, FollowsARecordedRun) {
  const TemporaryFolder folder;
  const auto path = folder / "metrics.jsonl";
  nlohmann::json load = nlohmann::json::array();
  for (int layer = 0; layer < 2; ++layer) {
    std::vector<int64_t> experts(16, 1);
    experts[3] = 85;  // 85 of 100 routes
    load.push_back(experts);
  }
  std::ofstream(path) << nlohmann::json{{"step", 1}, {"moe/expert_load", load}}.dump() << "\n";
  PlannedRun run{"", 2, {"parallelism.expert_parallel_degree=2"}};
  const auto balanced = plan::dry_run(small_recipe(run), {.world_size = 2}, 0);
  run.overrides.push_back("plan.routing_profile=" + path);
  const auto recorded = plan::dry_run(small_recipe(run), {.world_size = 2}, 0);
  // Rank 0's eight experts have 92 % of the recorded load; of the profile, 104 of 100 tokens' 200 routes.
  const auto kind = FlopKind::kExpert;
  EXPECT_NEAR(static_cast<double>(recorded.counters.flops[kind]) / balanced.counters.flops[kind], 0.92 / 0.52,
              0.02);
  const auto real = real_run(small_recipe(run), run);
  EXPECT_EQ(real[0].device.bytes, recorded.device.bytes);

  std::ofstream(path) << nlohmann::json{{"step", 1}}.dump() << "\n";
  EXPECT_THROW(plan::dry_run(small_recipe(run), {.world_size = 2}, 0), ValueError);
}

TEST(DryRun, OneRanksFailureEndsAll) {
  const PlannedRun run{"", 2, {"parallelism.expert_parallel_degree=2"}};
  const auto batch_of_group = [](int64_t group) -> std::vector<data::Microbatch> {
    STEPPE_CHECK_VALUE(group == 0, "no batch for group {}", group);
    return std::vector<data::Microbatch>(1);
  };
  EXPECT_THROW(plan::dry_run_all(small_recipe(run), {.world_size = 2, .batch_of_group = batch_of_group}),
               ValueError);
}

}  // namespace
}  // namespace steppe::testing
